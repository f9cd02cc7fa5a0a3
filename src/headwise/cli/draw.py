"""`headwise draw`: heads on a sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import MODEL_HELP, TextOptions
from headwise.core.errors import ParameterError
from headwise.core.options import CheckedOptions, option
from headwise.models.options import StackOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headwise.models import HeadModel
    from headwise.text import Spec

LAYER_NAME = re.compile(r"L\d+")


@dataclass(frozen=True)
class DrawOptions(CheckedOptions):
    """What is drawn: heads or layers on a sentence, or sentences with a relation."""

    heads: tuple[str, ...] = option(
        (),
        argument=True,
        metavar="HEAD",
        help="Heads like L7H9, layers like L7, or `all` for every map on one page.",
    )
    sentence: str = option(
        "The old teacher saw the cat that slept under the tree.",
        flag="text",
        help="The sentence.",
    )
    pair: str | None = option(None, help="A second sentence.")
    relation: str | None = option(
        None,
        help="Draw sentences of a corpus on which the head finds this dependency relation, "
        "`coreference` or `frames`.",
    )
    atlas: tuple[Path, ...] = option(
        (),
        help="Results that heads are chosen from: an atlas.nc, or its folder; repeatable.",
    )
    what: str = option(
        "attention",
        flag=("what", "source"),
        help="attention; what tokens contribute to the heads, of the previous_layer or of the "
        "input (hidden token attribution); or another measure of context mixing: rollout, flow, "
        "norm, value_zeroing, chefer.",
    )
    max_tokens: int | None = option(None, min=2, help="Draw at most this many tokens.")
    count: int = option(2, min=1, help="With --relation: how many sentences.")

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers named, `L7`."""
        return [int(name[1:]) for name in self.heads if LAYER_NAME.fullmatch(name)]

    @property
    def head_indices(self) -> list[tuple[int, int]]:
        """The heads named, `L7H9`, as (layer, head)."""
        from headwise.core.labels import parse_head

        if self.heads == ("all",) or self.layers:
            return []
        return [parse_head(name) for name in self.heads]

    def check(self) -> None:
        """Raise ParameterError where the options contradict each other."""
        named = " ".join(self.heads)
        if self.layers and len(self.layers) < len(self.heads):
            raise ParameterError(f"Name heads (L7H9) or layers (L7), not both; named are {named}.")
        n_heads = len(self.head_indices)
        if not self.heads and not self.relation:
            raise ParameterError("Name heads like L7H9, `all`, or a relation with --relation.")
        if self.relation and self.what != "attention":
            raise ParameterError(
                "--relation draws attention; omit --what (--source), or name heads and a --text."
            )
        if self.relation and self.heads and n_heads != 1:
            raise ParameterError(
                "--relation draws one head: name one, or none for the relation's best; named are "
                f"{named}."
            )

    def targets(self, out_file: Path) -> list[Path]:
        """Return the files that are written: FILE, or with a relation FILE-1, FILE-2, ..."""
        if not self.relation:
            return [out_file]
        numbers = range(1, self.count + 1)
        return [out_file.with_name(f"{out_file.stem}-{i}{out_file.suffix}") for i in numbers]


@command("draw")
def draw(
    *,
    drawing: DrawOptions,
    text: TextOptions,
    model: str | None = option(None, help=MODEL_HELP),
    out_file: Path = option(Path("heads.svg"), flag="out", help="A .svg, .pdf or .png file."),
    options: StackOptions,
    overwrite: bool = option(False, help="Replace existing files."),
) -> None:
    """Draw heads on a sentence.

    Tokens stand left and right; darker lines are larger weights.

    With --relation, sentences are chosen on which the head is right, and the words of the relation
    are coloured; they are written to FILE-1, FILE-2 and so on. Without a head, the best one of the
    relation is drawn: by --atlas, or by a run over the first 400 examples.

    [dim]Examples:[/dim]

      headwise draw L4H0 L6H1 --text "She gave the old book to her sister."

      headwise draw all --model gpt2 --text "Once upon a time" --out maps.pdf

      headwise draw --relation obj --corpus en_ewt-ud-dev.conllu --atlas ewt --out obj.svg

      headwise draw --relation coreference --out antecedents.svg

      headwise draw L5H1 --source input --max-tokens 20 --text "She gave the book to her sister."

      headwise draw L0 L11 --source rollout --text "She gave the old book to her sister."

      headwise draw L5H1 --source value_zeroing --out zeroed.svg

    The map of a layer is the mean of its heads (attention), or what the other measures give for
    the layer's output."""
    from headwise.plots.style import FORMATS, figure_bytes
    from headwise.run import Job

    ending = out_file.suffix.removeprefix(".")
    if ending not in FORMATS:
        endings = ", ".join(f".{name}" for name in FORMATS)
        raise ParameterError(f"--out must end in {endings}; it is '{out_file}'.")
    drawing.check()
    targets = drawing.targets(out_file)
    sources = common.sources_of(model, text.spec(), list(drawing.atlas))
    with Job.for_file(out_file, files=targets, overwrite=overwrite, sources=sources) as job:
        opened = options.open(model)
        if drawing.max_tokens is not None:
            opened = opened.limited(drawing.max_tokens)
        if drawing.relation:
            figures = _relation_figures(opened, text.spec(), drawing)
        else:
            figures = [_sentence_figure(opened, drawing)]
        # An interrupted command resumes by drawing again: the same figure has the same bytes.
        job.begin({"model": opened.identity(), "drawn": [str(target) for target in targets]})
        # There may be fewer sentences than requested.
        for target, figure in zip(targets, figures, strict=False):
            job.write(figure_bytes(figure, ending), target)
            common.out.print(f"Drawn: {target}")
        job.finish()


def _sentence_figure(model: HeadModel, drawing: DrawOptions) -> Figure:
    """Draw heads, layers or all maps on the sentence."""
    from headwise.core.labels import existing_heads
    from headwise.page.sample import (
        draw_all_maps,
        draw_heads,
        draw_layers,
        layer_sample,
        said_of,
        sample_of,
    )
    from headwise.text import Example

    example = Example(text=drawing.sentence, pair=drawing.pair)
    layers = drawing.layers
    if layers:
        for layer in layers:
            if layer >= model.layers:
                raise ParameterError(
                    f"There is no layer {layer}: the model has layers 0 to {model.layers - 1}."
                )
        sample = layer_sample(model, example, drawing.what)
        return draw_layers(sample, layers, what=said_of(drawing.what))
    heads = existing_heads(drawing.head_indices, model.layers, model.heads)
    sample = sample_of(model, example, drawing.what, heads or None)
    if heads:
        return draw_heads(sample, heads, what=said_of(drawing.what))
    return draw_all_maps(sample, drawing.what)


def _relation_figures(
    model: HeadModel, corpus: str | Spec | None, drawing: DrawOptions
) -> list[Figure]:
    """Draw sentences on which one head, or the best one, finds the relation."""
    from headwise.analyses.contract import make_analysis
    from headwise.analyses.sentences import sentence_task
    from headwise.page.relations import LOOKED_AT, best_head, draw_relation
    from headwise.run import make_atlas
    from headwise.text import open_corpus

    assert drawing.relation is not None
    group = sentence_task(drawing.relation).group
    needed = make_analysis(group).requires
    text = open_corpus(
        corpus, tokenizer=model.tokenizer, limit=LOOKED_AT, prose=model.causal
    ).having(needed)
    if drawing.heads:
        head = drawing.head_indices[0]
        return draw_relation(model, text, drawing.relation, head, drawing.count)
    atlas = common.load_atlas(drawing.atlas) or make_atlas(model, text, [group])
    head, direction = best_head(atlas, drawing.relation)
    return draw_relation(model, text, drawing.relation, head, drawing.count, direction)
