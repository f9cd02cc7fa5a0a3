"""The papers behind the methods, and how to cite them."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.core.errors import ParameterError, unknown


@dataclass(frozen=True, slots=True)
class Paper:
    """Where a method comes from."""

    key: str  # "clark2019"
    section: str  # "§3.1-3.3, Fig 2, 4"


@dataclass(frozen=True, slots=True)
class Reference:
    """One paper."""

    key: str
    short: str
    citation: str
    bibtex: str


def _reference(key: str, short: str, authors: str, title: str, venue: str, year: int) -> Reference:
    listed = authors.split(" and ")
    shown = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    bibtex = f"@inproceedings{{{key},\n  title = {{{title}}},\n  author = {{{authors}}},\n  booktitle = {{{venue}}},\n  year = {{{year}}}\n}}"
    return Reference(key, short, f"{shown} ({year}). {title}. {venue}.", bibtex)


REFERENCES = {
    r.key: r
    for r in (
        _reference(
            "clark2019",
            "Clark et al. 2019",
            "Kevin Clark and Urvashi Khandelwal and Omer Levy and Christopher D. Manning",
            "What Does BERT Look At? An Analysis of BERT's Attention",
            "Proceedings of the 2019 ACL Workshop BlackboxNLP",
            2019,
        ),
        _reference(
            "kovaleva2019",
            "Kovaleva et al. 2019",
            "Olga Kovaleva and Alexey Romanov and Anna Rogers and Anna Rumshisky",
            "Revealing the Dark Secrets of BERT",
            "Proceedings of EMNLP-IJCNLP 2019",
            2019,
        ),
        _reference(
            "pascual2021",
            "Pascual et al. 2021",
            "Damian Pascual and Gino Brunner and Roger Wattenhofer",
            "Telling BERT's Full Story: from Local Attention to Global Aggregation",
            "Proceedings of EACL 2021",
            2021,
        ),
        _reference(
            "pande2021",
            "Pande et al. 2021",
            "Madhura Pande and Aakriti Budhraja and Preksha Nema and Pratyush Kumar and Mitesh M. Khapra",
            "The Heads Hypothesis: A Unifying Statistical Approach Towards Understanding Multi-Headed Attention in BERT",
            "Proceedings of AAAI 2021",
            2021,
        ),
        _reference(
            "jo2020",
            "Jo & Myaeng 2020",
            "Jae-young Jo and Sung-Hyon Myaeng",
            "Roles and Utilization of Attention Heads in Transformer-based Neural Language Models",
            "Proceedings of ACL 2020",
            2020,
        ),
        _reference(
            "abnar2020",
            "Abnar & Zuidema 2020",
            "Samira Abnar and Willem Zuidema",
            "Quantifying Attention Flow in Transformers",
            "Proceedings of ACL 2020",
            2020,
        ),
        _reference(
            "kobayashi2020",
            "Kobayashi et al. 2020",
            "Goro Kobayashi and Tatsuki Kuribayashi and Sho Yokoi and Kentaro Inui",
            "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms",
            "Proceedings of EMNLP 2020",
            2020,
        ),
        _reference(
            "michel2019",
            "Michel et al. 2019",
            "Paul Michel and Omer Levy and Graham Neubig",
            "Are Sixteen Heads Really Better than One?",
            "Advances in Neural Information Processing Systems 32",
            2019,
        ),
    )
}


def reference(key: str) -> Reference:
    """A paper by its key."""
    if key not in REFERENCES:
        raise ParameterError(unknown("paper", key, REFERENCES))
    return REFERENCES[key]
