"""The options of a reproduction, declared once for Python and the command line (see
`core.options`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.core.errors import InputError, ParameterError
from headwise.core.options import CheckedOptions, option

VARIANTS = ("paper", "released")


def parse_entry_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the entries named in texts with commas between.

    >>> parse_entry_names(["table1,fig2", "fig3"])
    ('table1', 'fig2', 'fig3')
    """
    names = []
    for text in texts:
        for name in text.split(","):
            if name.strip():
                names.append(name.strip())
    return tuple(names)


def parse_model_folders(texts: Sequence[str]) -> dict[str, str]:
    """Return folders by task from texts of the form `TASK=FOLDER`.

    >>> parse_model_folders(["MRPC=models/mrpc"])
    {'MRPC': 'models/mrpc'}
    """
    folders = {}
    for text in texts:
        task, equals, folder = text.partition("=")
        if not equals or not folder:
            raise ParameterError(
                f"A fine-tuned model is given as TASK=FOLDER, not '{text}'.", option="finetuned"
            )
        folders[task] = folder
    return folders


@dataclass(frozen=True)
class ReproductionOptions(CheckedOptions):
    """The options of a reproduction.

    Parameters
    ----------
    data : str or Path, optional
        A folder with data sets, found by name (see `headwise.experiments.reproduction.data`).
    sources : str or Path, optional
        A JSON file that states what the data are, by the names of their files; by default
        `sources.json` beside them. A report names the data so.
    only : sequence of str, default ()
        The entries to compute (`table1`, `fig2`); all by default.
    quick : bool, default False
        Small samples: minutes on two cores for the built-in model.
    scale : float, default 1
        A factor on the paper's sample sizes, for instance 0.1 for a tenth.
    finetuned : mapping of str to str or Path
        Folders of fine-tuned models by task; models of other tasks are fine-tuned by the paper's
        recipe.
    variant : str, default "paper"
        `paper`, or `released`: as the authors' released code computes, where that differs.
    parser : str, optional
        A spaCy pipeline for the texts of tasks, where a paper parses them.
    device : str, optional
        The device to run on; the best available one by default.
    seed : int, default 0
        The seed of everything random.
    """

    data: str | Path | None = option(
        None,
        cli_type=Path | None,
        help="A folder with data sets, as their owners ship them, up to four folders deep: GLUE's "
        "folders, SentEval's files, FrameNet, UD treebanks, CoNLL-2012 or OntoGUM, XNLI, Wikipedia "
        "paragraphs, GloVe. The report names what is missing, with where to get it.",
    )
    sources: str | Path | None = option(
        None,
        cli_type=Path | None,
        help="A JSON file that states what the data are, by the names of their files "
        '({"odd_man_out.txt": "made from Wikipedia"}); default: sources.json beside them. The '
        "report names the data so.",
    )
    only: Sequence[str] = option(
        (),
        cli_type=list[str] | None,
        parse=parse_entry_names,
        in_identity=False,  # a later call may compute other entries in the same folder
        help="Only these entries, with commas between: table1,fig2.",
    )
    quick: bool = option(False, help="Small samples: minutes on two cores.")
    scale: float = option(1.0, min=0.001, help="A factor on the paper's sample sizes.")
    finetuned: Mapping[str, str | Path] = option(
        default_factory=dict,
        cli_type=list[str] | None,
        parse=parse_model_folders,
        metavar="TASK=FOLDER",
        help="A model fine-tuned on a task, instead of one that is fine-tuned here; repeatable.",
    )
    variant: str = option(
        "paper",
        choices=VARIANTS,
        aliases=("as",),
        metavar="|".join(VARIANTS),
        help="Compute what the paper prints, or what its authors' released code does where it "
        "differs.",
    )
    parser: str | None = option(
        None, help="A spaCy pipeline (name or folder) that parses the texts of tasks."
    )
    device: str | None = option(
        None,
        in_identity=False,  # the type of the open model's device is recorded
        help="cpu, cuda, cuda:1, mps ...; default: the best available.",
    )
    seed: int = option(0, min=0, help="Seed of everything random.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for task, folder in self.finetuned.items():
            if not Path(folder).is_dir():
                raise InputError(
                    f"There is no folder '{folder}' with a model of {task}.", option="finetuned"
                )
