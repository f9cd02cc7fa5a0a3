"""Kovaleva et al. 2019, "Revealing the Dark Secrets of BERT": figures 1 to 9, table 1, the maps of
the appendix."""

from headwise.experiments.reproduction.kovaleva2019 import disabling, frames, maps
from headwise.experiments.reproduction.schema import Entry, Reproduction

REPRODUCTION = Reproduction(
    "kovaleva2019",
    (
        "BERT-base uncased, pre-trained and fine-tuned on seven tasks of GLUE (batch 32, 3 epochs).",
        "§4.1, §4.3 to §4.5: up to 1000 examples of each task's validation set, on the model "
        "fine-tuned on that task.",
        "§4.2: FrameNet exemplars of at most 12 words, core elements of at most 3 words, at least "
        "two words apart, on the pre-trained model.",
        "§4.6: a head is disabled by uniform attention in its place; scores are on the validation set.",
    ),
    (
        Entry("fig1", "typical maps of five patterns", maps.typical),
        Entry("fig2", "how often each pattern of maps occurs, by task", maps.kinds),
        Entry("fig3", "heads that link a frame's target to its elements", frames.heads),
        Entry("fig4", "an annotated sentence, and the best heads on it", frames.annotation),
        Entry("table1", "scores of three starts of fine-tuning", disabling.scores),
        Entry("fig5", "similarity of maps before and after fine-tuning, by task", maps.change),
        Entry("fig6", "attention to [SEP] and [CLS], by task", maps.special),
        Entry("text4.4", "attention to linguistic features", maps.linguistic),
        Entry("fig7", "what [CLS] attends to in the last layer, by task", maps.last_layer),
        Entry("text4.5", "verb to subject, noun to pronoun", maps.token_pairs),
        Entry("fig8", "disabling one head", disabling.one_head),
        Entry("fig9", "disabling one layer", disabling.one_layer),
        Entry("appA", "all maps of one input of each task", maps.whole),
    ),
)
