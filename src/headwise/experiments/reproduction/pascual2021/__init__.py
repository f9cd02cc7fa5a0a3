"""Pascual et al. 2021, "Telling BERT's Full Story": figures 1 to 23."""

from functools import partial

from headwise.experiments.reproduction.pascual2021 import entries
from headwise.experiments.reproduction.schema import Entry, Reproduction

REPRODUCTION = Reproduction(
    "pascual2021",
    (
        "BERT-base uncased, not fine-tuned; German and Arabic BERT for Figure 4.",
        "1800 examples of MNLI-m's dev part of 6 to 64 tokens (as many as a head has dimensions, "
        "where attention is identifiable); XNLI for Figure 4.",
        "Contributions by Hidden Token Attribution, from the layer below and from the input; means "
        "over all tokens.",
    ),
    (
        Entry("text5", "the inputs", entries.setup),
        Entry("fig1", "attention against contributions of the previous layer", entries.local),
        Entry(
            "fig2",
            "attention by relative position, layers 2, 5 and 10",
            partial(entries.chosen, source="attention"),
        ),
        Entry(
            "fig3",
            "input contribution by relative position, layers 2, 5 and 10",
            partial(entries.chosen, source="input"),
        ),
        Entry("fig4", "centres of mass of attention in three languages", entries.languages),
        Entry("fig5", "centres of mass of attention and input contribution", entries.centres),
        Entry("fig6", "attention against contributions of the input", entries.far),
        Entry("fig7", "five patterns, in attention and in input contribution", entries.patterns),
        Entry(
            "fig8",
            "attention by relative position, first half",
            partial(entries.half, source="attention", which=0),
        ),
        Entry(
            "fig9",
            "attention by relative position, second half",
            partial(entries.half, source="attention", which=1),
        ),
        Entry(
            "fig10",
            "input contribution by relative position, first half",
            partial(entries.half, source="input", which=0),
        ),
        Entry(
            "fig11",
            "input contribution by relative position, second half",
            partial(entries.half, source="input", which=1),
        ),
        *entries.map_entries(),
    ),
)
