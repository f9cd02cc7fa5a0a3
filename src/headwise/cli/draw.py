"""`headwise draw`: heads on a sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli import common, options
from headwise.cli.command import command
from headwise.core.errors import ParameterError

if TYPE_CHECKING:
    from headwise.text import Spec

LAYER_NAME = re.compile(r"L\d+")


@command("draw")
def draw(
    *,
    heads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HEAD...]",
            help="Heads like L7H9, layers like L7, or `all` for every map on one page.",
        ),
    ] = None,
    sentence: Annotated[
        str, typer.Option("--text", help="The sentence.")
    ] = "The old teacher saw the cat that slept under the tree.",
    pair: Annotated[str | None, typer.Option(help="A second sentence.")] = None,
    relation: Annotated[
        str | None,
        typer.Option(
            help="Draw sentences of a corpus on which the head finds this dependency relation, `coreference` or "
            "`frames`."
        ),
    ] = None,
    text: options.TextOptions,
    atlas: options.AtlasFile = None,
    what: Annotated[
        str,
        typer.Option(
            "--what",
            "--source",
            help="attention; what tokens contribute to the heads, of the previous_layer or of the input (hidden token "
            "attribution); or another reading of mixing: rollout, flow, norm, value_zeroing, chefer.",
        ),
    ] = "attention",
    max_tokens: Annotated[
        int | None, typer.Option(min=2, help="Draw at most the first so many tokens.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="With --relation: how many sentences.")] = 2,
    model: options.ModelOption = None,
    out_file: Annotated[Path, typer.Option("--out", help="A .svg, .pdf or .png file.")] = Path(
        "heads.svg"
    ),
    placed: options.StackOptions,
    overwrite: options.Overwrite = False,
) -> None:
    """Draw heads on a sentence: tokens left and right, a line as dark as its weight.

    With --relation, sentences are picked on which the head is right, and the words of the relation
    are coloured; they go to FILE-1, FILE-2 and so on. Unless a head is named, it is the relation's
    best one: by --atlas, or by a run over the first 400 examples.

    [dim]Examples:[/dim]

      headwise draw L4H0 L6H1 --text "She gave the old book to her sister."

      headwise draw all --model gpt2 --text "Once upon a time" --out maps.pdf

      headwise draw --relation obj --corpus en_ewt-ud-dev.conllu --atlas ewt --out obj.svg

      headwise draw --relation coreference --out antecedents.svg

      headwise draw L5H1 --source input --max-tokens 20 --text "She gave the book to her sister."

      headwise draw L0 L11 --source rollout --text "She gave the old book to her sister."

      headwise draw L5H1 --source value_zeroing --out zeroed.svg

    A layer's map is what leaves the layer: the mean of its heads (attention), or what the reading
    says of it."""
    from headwise.core.labels import existing_heads, parse_head
    from headwise.page.sample import (
        draw_all_maps,
        draw_heads,
        draw_layers,
        layer_sample,
        said_of,
        sample_of,
    )
    from headwise.plots.save import FORMATS, figure_bytes
    from headwise.run import Job
    from headwise.text import Example

    ending = out_file.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise ParameterError(
            f"--out must end in {', '.join('.' + f for f in FORMATS)}; it is '{out_file}'."
        )
    layers = [int(name[1:]) for name in heads or [] if LAYER_NAME.fullmatch(name)]
    chosen = [] if heads == ["all"] or layers else [parse_head(name) for name in heads or []]
    if layers and len(layers) < len(heads or []):
        raise ParameterError(
            f"Name heads (L7H9) or layers (L7), not both; named are {' '.join(heads or [])}."
        )
    if not heads and not relation:
        raise ParameterError("Name heads like L7H9, `all`, or a relation with --relation.")
    if relation and what != "attention":
        raise ParameterError(
            "--relation draws attention; leave --what (--source) out, or name heads and a --text."
        )
    if relation and heads and len(chosen) != 1:
        raise ParameterError(
            f"--relation draws one head: name one, or none for the relation's best; named are {' '.join(heads)}."
        )
    targets = [out_file]
    if relation:
        targets = [
            out_file.with_name(f"{out_file.stem}-{number + 1}.{ending}") for number in range(count)
        ]
    read = common.sources_of(model, text.spec(), atlas)
    with Job.for_file(out_file, files=targets, overwrite=overwrite, sources=read) as job:
        opened = placed.open(model)
        if max_tokens is not None:
            opened = opened.limited(max_tokens)
        if relation:
            figures = _relation_figures(opened, text.spec(), relation, chosen, count, atlas)
        elif layers:
            missing = [layer for layer in layers if layer >= opened.layers]
            if missing:
                raise ParameterError(
                    f"There is no layer {missing[0]}: the model has layers 0 to {opened.layers - 1}."
                )
            figures = [
                draw_layers(
                    layer_sample(opened, Example(text=sentence, pair=pair), what),
                    layers,
                    what=said_of(what),
                )
            ]
        else:
            known = existing_heads(chosen, opened.layers, opened.heads) or None
            sample = sample_of(opened, Example(text=sentence, pair=pair), what, known)
            figures = [
                draw_heads(sample, chosen, what=said_of(what))
                if chosen
                else draw_all_maps(sample, what)
            ]
        # An interrupted command resumes by drawing again: the same figure has the same bytes.
        job.begin({"model": opened.identity(), "drawn": [str(target) for target in targets]})
        # There may be fewer sentences than asked for.
        for target, figure in zip(targets, figures, strict=False):
            job.write(figure_bytes(figure, ending), target)
            common.out.print(f"Drawn: {target}")
        job.finish()


def _relation_figures(
    model: Any,
    corpus: str | Spec | None,
    relation: str,
    chosen: list[tuple[int, int]],
    count: int,
    atlas_file: list[Path] | None,
) -> list[Any]:
    from headwise.analyses.contract import make_analysis
    from headwise.analyses.sentences import sentence_task
    from headwise.page.relations import LOOKED_AT, best_head, draw_relation
    from headwise.run import make_atlas
    from headwise.text import open_corpus

    needed = make_analysis(sentence_task(relation).group).requires
    text = open_corpus(
        corpus, tokenizer=model.tokenizer, limit=LOOKED_AT, prose=model.causal
    ).having(needed)
    if chosen:
        return draw_relation(model, text, relation, chosen[0], count)
    known = common.load_atlas(atlas_file) or make_atlas(
        model, text, [sentence_task(relation).group]
    )
    head, direction = best_head(known, relation)
    return draw_relation(model, text, relation, head, count, direction)
