"""Jo & Myaeng 2020, "Roles and Utilization of Attention Heads": tables 1 to 5, figures 1 to 7."""

from functools import partial

from headwise.experiments.reproduction.jo2020 import downstream, probing
from headwise.experiments.reproduction.schema import Entry, Reproduction

REPRODUCTION = Reproduction(
    "jo2020",
    (
        "GPT, GPT-2, BERT base and large, ELECTRA small, base and large, not fine-tuned; a sentence "
        "is its [CLS] token, or the last token of GPT and GPT-2.",
        "Ten probing tasks of SentEval, 100k training and 10k test sentences each: logistic "
        "regression, RMSProp, learning rate 0.1, batch 256, L2 picked on validation, five folds.",
        "Heads and layers are picked on validation, scores are of the test part.",
        "Fine-tuning on MRPC, STS-B and SST-2: batch 32, 2e-5, three epochs, five seeds, medians.",
    ),
    (
        Entry(
            "fig1",
            "how layers and heads are evaluated",
            partial(probing.drawing, what="how vectors are taken"),
        ),
        Entry("fig2", "how heads are selected and joined", probing.selection),
        Entry("table1", "the encoders", probing.encoders),
        Entry("table2", "the probing tasks", probing.tasks),
        Entry("fig3", "accuracy of every head, six tasks", partial(probing.heads, entry="fig3")),
        Entry("table3", "last layer, best layer, top heads", probing.poolings),
        Entry("table4", "downstream tasks, fine-tuned", downstream.fine_tuned),
        Entry("fig4", "heads on downstream tasks before and after fine-tuning", downstream.states),
        Entry("fig5", "syntactic and semantic scores of heads", probing.scores),
        Entry("table5", "all encoders and tasks", probing.every_encoder),
        Entry(
            "fig6",
            "accuracy of every head, sorted within layers",
            partial(probing.heads, entry="fig6"),
        ),
        Entry(
            "fig7", "accuracy of every head, in their places", partial(probing.heads, entry="fig7")
        ),
    ),
)
