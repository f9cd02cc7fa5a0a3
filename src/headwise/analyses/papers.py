"""The papers behind the methods, and how to cite them."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.core.errors import ParameterError, unknown
from headwise.core.version import __version__


@dataclass(frozen=True, slots=True)
class Paper:
    """Where a method comes from."""

    key: str  # "clark2019"
    section: str  # "§3.1-3.3, Fig 2, 4"
    more: tuple[str, ...] = ()  # keys of other papers whose methods stand beside


@dataclass(frozen=True, slots=True)
class Reference:
    """One paper."""

    key: str
    short: str
    citation: str
    bibtex: str

    def attributes(self, section: str) -> dict[str, str]:
        """What a result says of the paper it follows."""
        return {"paper": self.short, "section": section, "citation": self.citation}


# Key (whose end is the year), authors, title and place of each. A line of authors that ends in
# "and" goes on in the next.
_PAPERS = """
clark2019
Kevin Clark and Urvashi Khandelwal and Omer Levy and Christopher D. Manning
What Does BERT Look At? An Analysis of BERT's Attention
Proceedings of the 2019 ACL Workshop BlackboxNLP

kovaleva2019
Olga Kovaleva and Alexey Romanov and Anna Rogers and Anna Rumshisky
Revealing the Dark Secrets of BERT
Proceedings of EMNLP-IJCNLP 2019

pascual2021
Damian Pascual and Gino Brunner and Roger Wattenhofer
Telling BERT's Full Story: from Local Attention to Global Aggregation
Proceedings of EACL 2021

pande2021
Madhura Pande and Aakriti Budhraja and Preksha Nema and Pratyush Kumar and Mitesh M. Khapra
The Heads Hypothesis: A Unifying Statistical Approach Towards Understanding Multi-Headed Attention in BERT
Proceedings of AAAI 2021

jo2020
Jae-young Jo and Sung-Hyon Myaeng
Roles and Utilization of Attention Heads in Transformer-based Neural Language Models
Proceedings of ACL 2020

abnar2020
Samira Abnar and Willem Zuidema
Quantifying Attention Flow in Transformers
Proceedings of ACL 2020

kobayashi2020
Goro Kobayashi and Tatsuki Kuribayashi and Sho Yokoi and Kentaro Inui
Attention is Not Only a Weight: Analyzing Transformers with Vector Norms
Proceedings of EMNLP 2020

kobayashi2021
Goro Kobayashi and Tatsuki Kuribayashi and Sho Yokoi and Kentaro Inui
Incorporating Residual and Normalization Layers into Analysis of Masked Language Models
Proceedings of EMNLP 2021

mohebbi2023
Hosein Mohebbi and Willem Zuidema and Grzegorz Chrupała and Afra Alishahi
Quantifying Context Mixing in Transformers
Proceedings of EACL 2023

chefer2021
Hila Chefer and Shir Gur and Lior Wolf
Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers
Proceedings of ICCV 2021

michel2019
Paul Michel and Omer Levy and Graham Neubig
Are Sixteen Heads Really Better than One?
Advances in Neural Information Processing Systems 32

elhage2021
Nelson Elhage and Neel Nanda and Catherine Olsson and Tom Henighan and Nicholas Joseph and
Ben Mann and Amanda Askell and Yuntao Bai and Anna Chen and Tom Conerly and Nova DasSarma and
Dawn Drain and Deep Ganguli and Zac Hatfield-Dodds and Danny Hernandez and Andy Jones and
Jackson Kernion and Liane Lovitt and Kamal Ndousse and Dario Amodei and Tom Brown and
Jack Clark and Jared Kaplan and Sam McCandlish and Chris Olah
A Mathematical Framework for Transformer Circuits
Transformer Circuits Thread

olsson2022
Catherine Olsson and Nelson Elhage and Neel Nanda and Nicholas Joseph and Nova DasSarma and
Tom Henighan and Ben Mann and Amanda Askell and Yuntao Bai and Anna Chen and Tom Conerly and
Dawn Drain and Deep Ganguli and Zac Hatfield-Dodds and Danny Hernandez and Scott Johnston and
Andy Jones and Jackson Kernion and Liane Lovitt and Kamal Ndousse and Dario Amodei and
Tom Brown and Jack Clark and Jared Kaplan and Sam McCandlish and Chris Olah
In-context Learning and Induction Heads
Transformer Circuits Thread

xiao2023
Guangxuan Xiao and Yuandong Tian and Beidi Chen and Song Han and Mike Lewis
Efficient Streaming Language Models with Attention Sinks
arXiv:2309.17453

gu2024
Xiangming Gu and Tianyu Pang and Chao Du and Qian Liu and Fengzhuo Zhang and Cunxiao Du and
Ye Wang and Min Lin
When Attention Sink Emerges in Language Models: An Empirical View
arXiv:2410.10781

wu2024
Wenhao Wu and Yizhong Wang and Guangxuan Xiao and Hao Peng and Yao Fu
Retrieval Head Mechanistically Explains Long-Context Factuality
arXiv:2404.15574

wang2022
Kevin Wang and Alexandre Variengien and Arthur Conmy and Buck Shlegeris and Jacob Steinhardt
Interpretability in the Wild: a Circuit for Indirect Object Identification in GPT-2 small
arXiv:2211.00593

geva2023
Mor Geva and Jasmijn Bastings and Katja Filippova and Amir Globerson
Dissecting Recall of Factual Associations in Auto-Regressive Language Models
Proceedings of EMNLP 2023

xiao2024
Guangxuan Xiao and Jiaming Tang and Jingwei Zuo and Junxian Guo and Shang Yang and Haotian Tang and Yao Fu and Song Han
DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads
arXiv:2410.10819

goldowsky2023
Nicholas Goldowsky-Dill and Chris MacLeod and Lucas Sato and Aryaman Arora
Localizing Model Behavior with Path Patching
arXiv:2304.05969

syed2023
Aaquib Syed and Can Rager and Arthur Conmy
Attribution Patching Outperforms Automated Circuit Discovery
arXiv:2310.10348

hanna2024
Michael Hanna and Sandro Pezzelle and Yonatan Belinkov
Have Faith in Faithfulness: Going Beyond Circuit Overlap When Finding Model Mechanisms
arXiv:2403.17806

mcdougall2023
Callum McDougall and Arthur Conmy and Cody Rushing and Thomas McGrath and Neel Nanda
Copy Suppression: Comprehensively Understanding an Attention Head
arXiv:2310.04625

gould2023
Rhys Gould and Euan Ong and George Ogden and Arthur Conmy
Successor Heads: Recurring, Interpretable Attention Heads In The Wild
arXiv:2312.09230

elhelo2024
Amit Elhelo and Mor Geva
Inferring Functionality of Attention Heads from their Parameters
arXiv:2412.11965

todd2023
Eric Todd and Millicent L. Li and Arnab Sen Sharma and Aaron Mueller and Byron C. Wallace and David Bau
Function Vectors in Large Language Models
arXiv:2310.15213
"""

# The papers behind commands that run no analysis.
COMMAND_PAPERS: dict[str, tuple[str, ...]] = {
    "patch": ("wang2022",),
    "circuit": ("hanna2024", "syed2023", "goldowsky2023", "wang2022"),
    "why": ("elhage2021",),
    "knockout": ("geva2023",),
    "cache": ("xiao2024", "wu2024"),
}


def _reference(paper: str) -> Reference:
    key, authors, title, venue = paper.replace(" and\n", " and ").split("\n")
    year, names = key[-4:], authors.split(" and ")
    last = [name.split()[-1] for name in names]
    short = f"{last[0]} et al. {year}" if len(names) > 2 else f"{' & '.join(last)} {year}"
    shown = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
    fields = {"title": title, "author": authors, "booktitle": venue, "year": year}
    bibtex = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return Reference(
        key, short, f"{shown} ({year}). {title}. {venue}.", f"@inproceedings{{{key},\n{bibtex}\n}}"
    )


def _headwise() -> Reference:
    """headwise itself, as CITATION.cff says it."""
    authors = "The headwise developers"
    title = "headwise: what each attention head of a transformer language model does"
    year = "2026"
    fields = {
        "title": title,
        "author": f"{{{authors}}}",  # doubled braces: an organisation, not first and last names
        "version": __version__,
        "year": year,
        "license": "Apache-2.0",
    }
    bibtex = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return Reference(
        "headwise",
        f"headwise {__version__}",
        f"{authors} ({year}). {title}. Version {__version__}. Apache-2.0.",
        f"@software{{headwise,\n{bibtex}\n}}",
    )


HEADWISE = _headwise()
REFERENCES = {r.key: r for r in map(_reference, _PAPERS.strip().split("\n\n"))}


def reference(key: str) -> Reference:
    """A paper by its key."""
    if key not in REFERENCES:
        raise ParameterError(unknown("paper", key, REFERENCES))
    return REFERENCES[key]


def current_citation(paper: str, citation: str) -> str:
    """Return how to cite a paper by its short name, as it is known today.

    An atlas of an earlier version may hold a citation whose list of authors is cut off; that of a
    paper that is not known here (of another package) is returned as it is.
    """
    for known in REFERENCES.values():
        if known.short == paper:
            return known.citation
    return citation
