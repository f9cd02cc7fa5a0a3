"""Pande et al. 2021, "The Heads Hypothesis": figures 1 to 6."""

from headwise.experiments.reproduction.pande2021 import change, labels, scores
from headwise.experiments.reproduction.schema import Entry, Reproduction

REPRODUCTION = Reproduction(
    "pande2021",
    (
        "BERT-base, pre-trained by the authors, fine-tuned on each of QNLI, QQP, MRPC and SST-2 "
        "(LAMB, 1e-4 or 2e-4, batch 32 or 128, 10k steps of warm-up).",
        "1000 inputs of each task's test part, parsed with spaCy.",
        "τ is the smallest integer above the mean of all scores of local, syntactic, block and "
        "delimiter; one-tailed test, p < 0.05.",
        "By the printed formula a head that attends to its own segment alone has a block bias of "
        "2n/(n − 3), so that none can pass τ = 3 once an input has more than 9 tokens: block heads "
        "are shown by the released code's score too, which multiplies it by the entropy of the "
        "row.",
    ),
    (
        Entry("fig1", "sieves of one input", scores.sieves),
        Entry("fig2", "the scores of one head over inputs", scores.one_head),
        Entry("fig3", "all scores, τ, and the p-values", scores.p_values),
        Entry("fig4", "heads with several roles", labels.overlaps),
        Entry("fig5", "the roles of every head, by layer", labels.grid),
        Entry("fig6", "change of bias, and of roles, by fine-tuning", change.changes),
    ),
)
