"""`headwise draw`: heads on a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.commands.common import CorpusOption, DeviceOption, ModelOption, OverwriteOption, StackOption, out
from headwise.errors import InputError, OutputError, ParameterError

SEARCHED = 400  # sentences looked through for a relation


def draw(
    heads: Annotated[
        list[str] | None, typer.Argument(metavar="[HEAD...]", help="Heads like L7H9, or `all` for every map on one page.")
    ] = None,
    text: Annotated[str, typer.Option("--text", help="The sentence.")] = "The old teacher saw the cat that slept under the tree.",
    pair: Annotated[str | None, typer.Option("--pair", help="A second sentence.")] = None,
    relation: Annotated[
        str | None, typer.Option("--relation", help="Draw sentences of a treebank on which the head finds this relation.")
    ] = None,
    corpus: CorpusOption = None,
    count: Annotated[int, typer.Option("--count", min=1, help="With --relation: how many sentences.")] = 2,
    model: ModelOption = None,
    out_file: Annotated[Path, typer.Option("--out", help="A .svg, .pdf or .png file.")] = Path("heads.svg"),
    device: DeviceOption = None,
    stack: StackOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Draw heads on a sentence: tokens left and right, a line as dark as its weight.

    With --relation, sentences are picked on which the head (the relation's best one, unless named) is right, and the words of the relation are coloured; they go to
    FILE-1, FILE-2 and so on.

    [dim]Examples:[/dim]

      headwise draw L4H0 L6H1 --text "She gave the old book to her sister."

      headwise draw all --model gpt2 --text "Once upon a time" --out maps.pdf

      headwise draw --relation obj --corpus en_ewt-ud-dev.conllu --out obj.svg
    """
    from headwise.models import HeadModel
    from headwise.page.sample import draw_all_maps, draw_heads, sample_of
    from headwise.plots import save_figure
    from headwise.plots.save import FORMATS
    from headwise.text import Example

    ending = out_file.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise ParameterError(f"--out must end in {', '.join('.' + f for f in FORMATS)}; it is '{out_file}'.")
    chosen = [] if heads == ["all"] else [_head(name) for name in heads or []]
    if not heads and not relation:
        raise ParameterError("Name heads like L7H9, `all`, or a relation with --relation.")
    opened = HeadModel.open(model, device=device, stack=stack)
    if relation:
        figures = _relation_figures(opened, corpus, relation, chosen, count)
    else:
        sample = sample_of(opened, Example(text=text, pair=pair))
        figures = [draw_heads(sample, chosen) if chosen else draw_all_maps(sample)]
    names = [out_file.stem] if not relation else [f"{out_file.stem}-{number + 1}" for number in range(len(figures))]
    for name, figure in zip(names, figures, strict=True):
        target = out_file.with_name(f"{name}.{ending}")
        if target.exists() and not overwrite:
            raise OutputError(f"{target} exists; give --overwrite to replace it, or choose another name with --out.")
        save_figure(figure, out_file.parent, name, [ending])
        out.print(f"Drawn: {target}")


def _head(name: str) -> tuple[int, int]:
    from headwise.atlas import HEAD_NAME

    found = HEAD_NAME.match(name)
    if not found:
        raise ParameterError(f"A head is named like 'L7H9' (layer 7, head 9, counted from 0); it is '{name}'.")
    return int(found[1]), int(found[2])


def _relation_figures(model: Any, corpus: str | None, relation: str, chosen: list[tuple[int, int]], count: int) -> list[Any]:
    from headwise.analyses.dependency_sentences import best_place, right_sentences
    from headwise.plots.syntax import draw_relation
    from headwise.run import make_atlas
    from headwise.text import open_corpus

    text = open_corpus(corpus, tokenizer=model.tokenizer, limit=SEARCHED)
    dataset = make_atlas(model, text, ["dependency"])["dependency"]
    layer, head, direction = best_place(dataset, relation)
    if chosen:
        (layer, head) = chosen[0]
        directions = dataset["accuracy"].sel(relation=relation, layer=layer, head=head)
        direction = str(directions["direction"].values[int(directions.fillna(-1).argmax("direction"))])
    found = right_sentences(model, text, relation, layer, head, direction, count=count)
    if not found:
        raise InputError(
            f"L{layer}H{head} is not right on any short sentence with '{relation}' among the first {SEARCHED}; try another head or corpus."
        )
    return [draw_relation(sentence) for sentence in found]


def register(app: typer.Typer) -> None:
    app.command()(draw)
