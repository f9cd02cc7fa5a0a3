"""Clark et al. 2019, "What Does BERT Look At?": figures 1 to 6, tables 1 to 3."""

from headwise.experiments.reproduction.clark2019 import drawings, surface, syntax
from headwise.experiments.reproduction.schema import Entry, Reproduction

REPRODUCTION = Reproduction(
    "clark2019",
    (
        "BERT-base (12 layers × 12 heads), not fine-tuned.",
        "§3 and §6: 1000 segments of Wikipedia, each two consecutive paragraphs of at most 128 "
        "tokens, `[CLS] a [SEP] b [SEP]`.",
        "§4.2 and §5: the Wall Street Journal part of the Penn Treebank in Stanford Dependencies; "
        "word-level maps (sum to a word, mean from a word), [CLS] and [SEP] left out.",
        "§4.3: CoNLL-2012, documents cut to 128 tokens.",
    ),
    (
        Entry("fig1", "heads that show the patterns of §3, drawn", drawings.patterns),
        Entry("fig2", "attention to each token type", surface.token_types),
        Entry("text3.1", "attention to neighbouring tokens", surface.positions),
        Entry("fig3", "gradient importance by token type", surface.gradients),
        Entry("fig4", "entropy of attention", surface.entropies),
        Entry("fig5", "heads that follow relations, drawn", drawings.phenomena),
        Entry("table1", "the best head of each dependency relation", syntax.relations),
        Entry("table2", "heads that find antecedents", syntax.coreference),
        Entry("table3", "probes that parse from attention", syntax.probes),
        Entry("fig6", "distances between heads", syntax.distances),
    ),
)
