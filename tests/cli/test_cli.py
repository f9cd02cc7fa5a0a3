"""The command line: what works, and one clear sentence with exit code 2 for everything a user can
get wrong."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import torch
import typer
import xarray as xr
from safetensors.torch import load_file, save_file

from headwise import Atlas, __version__
from headwise.analyses.roles.sieves.registry import forget_sieve
from headwise.cli.command import GROUPS
from headwise.cli.main import app
from headwise.core.errors import HeadwiseError
from headwise.page import sections
from headwise.plots import figures_for
from headwise.run import engine as engine_module
from headwise.testing import planted_annotations, planted_model
from headwise.testing.corpora import battery_examples
from headwise.text.readers.rows import row_of_example


@pytest.mark.usefixtures("not_laid_out")
def test_atlas_writes_everything_and_never_overwrites(
    headwise,
    model_folder: Path,
    corpus_file: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sections, "figures_for", lambda group: figures_for(group)[:1]
    )  # the next test draws them all
    out = tmp_path / "out"
    arguments = ("atlas", model_folder, "--corpus", corpus_file, "--out", out, "--analyses")
    first = headwise(*arguments, "surface")
    assert first.code == 0, first.err
    atlas = Atlas.load(out / "atlas.nc")
    assert int(atlas["surface"]["entropy_n"].max()) == 3
    page = (out / "index.html").read_text()
    assert "planted" in page
    assert "L0H0" in page
    assert {p.suffix for p in (out / "figures").iterdir()} == {".svg"}
    assert (
        (out / "tables" / "surface.csv")
        .read_text()
        .startswith("analysis,variable,layer,head,item,value,n,low,high")
    )
    assert not (out / ".run").exists()  # finished: nothing to resume is left behind
    again = headwise(*arguments, "surface")
    assert again.code == 2
    assert "exists; pass overwrite=True" in again.err
    request.getfixturevalue("only_svg")
    assert headwise(*arguments, "offsets", "--overwrite").code == 0
    assert {p.suffix for p in (out / "figures").iterdir()} == {
        ".svg"
    }  # what the first run wrote is gone


@pytest.mark.usefixtures("only_svg")
def test_a_relative_folder_is_as_good(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = headwise(
        "atlas", model_folder, "--corpus", corpus_file, "--analyses", "surface", "--out", "deep/out"
    )
    assert done.code == 0, done.err
    assert (tmp_path / "deep" / "out" / "index.html").read_text().count("<img data-svg=") >= 3


def test_run_sets_parameters(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "o.nc"
    done = headwise(
        "run",
        "offsets",
        "--model",
        model_folder,
        "--corpus",
        corpus_file,
        "--out",
        target,
        "--set",
        "reach=2",
        "--set",
        "offsets.weighting=tokens",
    )
    assert done.code == 0, done.err
    assert Atlas.load(target)["offsets"].sizes["offset"] == 5
    assert "mean_distance" in done.out


def test_heads_found_on_one_text_and_tested_on_another(headwise, tmp_path: Path) -> None:
    planted, examples = planted_annotations(
        [example for example in battery_examples() if not example.has_pair], (("tree", "uniform"),)
    )
    planted.model.save_pretrained(tmp_path / "model")
    planted.tokenizer.save_pretrained(tmp_path / "model")
    for name, part in (("one", examples[::2]), ("two", examples[1::2])):
        rows = [json.dumps(row_of_example(example)) for example in part]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    common = ("--model", tmp_path / "model", "--corpus")
    found = headwise(
        "run", "dependency", *common, tmp_path / "one.jsonl", "--out", tmp_path / "one.nc"
    )
    assert found.code == 0, found.err
    assert "Best head of each relation" in found.out
    tested = headwise(
        "run",
        "dependency",
        *common,
        tmp_path / "two.jsonl",
        "--heads-from",
        tmp_path / "one.nc",
        "--out",
        tmp_path / "two.nc",
    )
    assert tested.code == 0, tested.err
    assert "Heads found elsewhere" in tested.out
    assert "p_value" not in tested.out
    assert (
        float(Atlas.load(tmp_path / "two.nc")["dependency"]["given_accuracy"].sel(relation="all"))
        == 1
    )
    wrong = headwise(
        "run", "surface", *common, tmp_path / "two.jsonl", "--heads-from", tmp_path / "one.nc"
    )
    assert wrong.code == 2
    assert "no best heads of surface" in wrong.err


def test_the_model_is_taken_as_an_argument_and_as_an_option(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    rest = ("--corpus", corpus_file, "--out")
    ways = {
        "argument": (model_folder,),
        "option": ("--model", model_folder),
        "both": (model_folder, "--model", model_folder),
    }
    found = {}
    for name, way in ways.items():
        done = headwise("run", "offsets", *way, *rest, tmp_path / f"{name}.nc")
        assert done.code == 0, done.err
        found[name] = Atlas.load(tmp_path / f"{name}.nc")["offsets"]
        assert found[name].sizes["layer"] < 12  # not the built-in model
        assert found[name].equals(found["argument"])
    for command in (("run", "offsets"), ("atlas",)):
        two = headwise(*command, model_folder, "--model", tmp_path, *rest, tmp_path / "two.nc")
        assert two.code == 2
        assert f"Two values for model: '{model_folder}' and '{tmp_path}'" in " ".join(
            two.err.split()
        )


def test_every_command_with_a_model_takes_it_both_ways_where_it_can() -> None:
    """Commands with a list of arguments of their own could not tell a model from them: the option
    alone."""
    ways = {}
    for name, command in typer.main.get_command(app).commands.items():
        kinds = {
            param.param_type_name
            for param in command.params
            if param.name in ("model", "model_by_flag")
        }
        if kinds:
            ways[name] = kinds
    lists = {"draw", "probe"}
    assert {name for name, kinds in ways.items() if kinds == {"option"}} == lists
    assert {name for name, kinds in ways.items() if kinds == {"option", "argument"}} >= {
        *("atlas", "run", "find", "ablate", "prune", "patch", "finetune")
    }
    assert all("option" in kinds for kinds in ways.values())


def test_finetune_takes_heads_and_layer_from_a_probing_result(
    headwise, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a task that is called by nothing but its files."""
    ranked = {
        "top_layer": ("rank", [1, 0, -1]),
        "top_head": ("rank", [2, 1, -1]),
        "layer_accuracy": ("layer", [0.5, 0.9]),
    }
    probed = xr.Dataset(ranked).expand_dims(task=["task"])
    (tmp_path / "probing.nc").write_bytes(Atlas({"probing": probed}, {}).to_bytes())
    rows = "sentence\tlabel\nthe cat sleeps .\t1\na dog saw the cat .\t0\n"
    (tmp_path / "rows.tsv").write_text(rows)
    asked = []

    def stop(source, task, folder, options, *_):
        asked.append(options)
        raise HeadwiseError("far enough")

    monkeypatch.setattr("headwise.experiments.finetuning.run.TaskFinetuning", stop)
    rows_twice = (
        "--train",
        tmp_path / "rows.tsv",
        "--dev",
        tmp_path / "rows.tsv",
        "--out",
        tmp_path / "out",
    )
    common = (
        "finetune",
        model_folder,
        *rows_twice,
        "--probing",
        tmp_path / "probing.nc",
        "--pooling",
    )
    assert "far enough" in headwise(*common, "top_heads").err
    assert "far enough" in headwise(*common, "best_layer").err
    assert (asked[0].heads, asked[0].top, asked[1].layer) == (["L1H2", "L0H1"], None, 1)
    assert "`top` must be at most 2" in headwise(*common, "top_heads", "--top", "3").err


def test_help_begins_with_what_a_newcomer_needs_and_the_version_is_told(headwise) -> None:
    helped = headwise("--help").out
    groups = {group: helped.index(f" {group} ") for group in GROUPS}
    assert list(groups.values()) == sorted(groups.values())
    places = [helped.index(f" {name}  ") for names in GROUPS.values() for name in names]
    assert places == sorted(places)
    assert set(typer.main.get_command(app).commands) == {
        name for names in GROUPS.values() for name in names
    }
    assert places == sorted(places)
    assert headwise("--version").out == f"headwise {__version__}\n"


def test_roles_with_a_sieve_of_ones_own(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    plugin, target = tmp_path / "mine.py", tmp_path / "roles.nc"
    plugin.write_text(
        "from headwise import sieve\n\n\n@sieve('dogs', 'the word dog')\ndef dogs(i, j):\n    return j.piece == 'dog'\n"
    )
    arguments = (
        "run",
        "roles",
        "--model",
        model_folder,
        "--corpus",
        corpus_file,
        "--out",
        target,
        "--set",
        "tau=2",
        "--set",
        f"plugin={plugin}",
    )
    try:
        done = headwise(*arguments)
        assert done.code == 0, done.err
        assert "τ = 2 (given; the paper's rule gives " in done.out
        assert "); 3 inputs, 6 heads" in done.out
        assert re.search("Fewer than 30 inputs, so never assigned: .*dogs", done.out)
        assert "dogs" in done.out
        assert (
            "left out: roles (role=question_mark): no token pairs of this type in the corpus"
            in done.err
        )
        dataset = Atlas.load(target)["roles"]
        assert float(dataset["bias"].sel(role="dogs", layer=0, head=2)) == pytest.approx(
            1, abs=1e-5
        )  # the uniform head
        assert str(int(dataset["has_role"].sum())) + " in all" in done.out
        plugin.write_text(
            plugin.read_text().replace("j.piece == 'dog'", "j.piece[:, :2] == 'dog'")
            + "# now of the wrong shape\n"
        )
        again = headwise(*arguments, "--overwrite")
        assert again.code == 2
        assert re.search(
            r"The sieve 'dogs' gives a matrix of shape \(1, 2\) for \d+ queries and \d+ keys",
            again.err,
        )
    finally:
        forget_sieve("dogs")


def test_a_feature_that_matches_nothing_is_named(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "words.jsonl"
    corpus.write_text('{"words": ["the", "dog", "sleeps"]}\n')
    arguments = (
        "run",
        "features",
        "--model",
        model_folder,
        "--corpus",
        corpus,
        "--out",
        tmp_path / "f.nc",
        "--set",
        "extra=ghost: form=ghost",
    )
    done = headwise(*arguments)
    assert done.code == 0, done.err
    assert "left out: features (feature=ghost): no token of this type in the corpus" in done.err
    assert "feature=ghost" in Atlas.load(tmp_path / "f.nc")["features"].attrs["left_out"]
    alone = headwise(*arguments, "--set", "features=ghost", "--overwrite")
    assert alone.code == 2
    assert "No token of the corpus has any of the features ghost" in alone.err


def test_plan_says_what_an_atlas_would_take(
    headwise, model_folder: Path, corpus_file: Path
) -> None:
    arguments = (
        "plan",
        model_folder,
        "--corpus",
        corpus_file,
        "--analyses",
        "surface,offsets",
        "--sample",
        2,
    )
    told = headwise(*arguments)
    assert told.code == 0, told.err
    assert "total" in told.out
    found = json.loads(headwise(*arguments, "--json").out)
    assert [stage["stage"] for stage in found["stages"]] == [
        "opening",
        "model pass",
        "surface",
        "offsets",
    ]
    assert found["seconds"] > 0
    assert found["examples"] == 3


def test_list_and_cite(headwise) -> None:
    listed = headwise("list")
    assert listed.code == 0
    assert "surface" in listed.out
    assert "offsets" in listed.out
    assert "What Does BERT Look At" in headwise("cite", "surface").out
    assert "@inproceedings{pascual2021" in headwise("cite", "offsets", "--bibtex").out
    assert "Quantifying Context Mixing" in headwise("cite", "attribution").out


@pytest.mark.usefixtures("only_svg")
def test_draw_and_probe(headwise, model_folder: Path, tmp_path: Path) -> None:
    drawn = headwise(
        "draw",
        "L0H0",
        "L1H2",
        "--model",
        model_folder,
        "--text",
        "the cat saw a dog",
        "--out",
        tmp_path / "heads.svg",
    )
    assert drawn.code == 0, drawn.err
    assert (tmp_path / "heads.svg").read_text().startswith("<?xml")
    text = ("--model", model_folder, "--text", "the cat saw a dog .")
    for what in ("previous_layer", "input"):
        out = tmp_path / f"{what}.svg"
        drawn = headwise("draw", "L0H0", *text, "--what", what, "--max-tokens", 5, "--out", out)
        assert drawn.code == 0, drawn.err
        assert "saw" in out.read_text()
        assert "dog" not in out.read_text()  # [CLS] and three words and [SEP]
    for name, source in (("L0H0", "value_zeroing"), ("L1", "rollout")):
        drawn = headwise(
            "draw", name, *text, "--source", source, "--out", tmp_path / f"{source}.svg"
        )
        assert drawn.code == 0, drawn.err
        assert name in (tmp_path / f"{source}.svg").read_text()
        assert "attention weight" not in (tmp_path / f"{source}.svg").read_text()
    for names, said in (
        (("L7",), "There is no layer 7"),
        (("L0", "L0H0"), "heads (L7H9) or layers (L7)"),
    ):
        assert said in headwise("draw", *names, *text, "--out", tmp_path / "x.svg").err
    assert (
        "previous_layer"
        in headwise("draw", "L0H0", *text, "--what", "gradient", "--out", tmp_path / "x.svg").err
    )
    assert (
        "There is no head L7H9"
        in headwise(
            "draw", "L7H9", "--model", model_folder, "--text", "a dog", "--out", tmp_path / "x.svg"
        ).err
    )
    assert (
        "like 'L7H9'"
        in headwise("draw", "8-10", "--model", model_folder, "--out", tmp_path / "x.svg").err
    )
    task = tmp_path / "animal.txt"
    rows = [
        (part, animal, f"{a} {animal} {v} .")
        for part, n in (("tr", 12), ("va", 4), ("te", 6))
        for i in range(n)
        for animal, a, v in [
            (("cat", "dog")[i % 2], ("the", "a")[i % 3 % 2], ("saw", "sleeps")[i % 5 % 2])
        ]
    ]
    task.write_text("".join(f"{part}\t{label}\t{text}\n" for part, label, text in rows))
    probed = headwise("probe", task, "--model", model_folder, "--out", tmp_path / "probing")
    assert probed.code == 0, probed.err
    assert "animal" in probed.out
    assert Atlas.load(tmp_path / "probing")["probing"]["accuracy"].shape == (1, 2, 3)


@pytest.mark.usefixtures("not_laid_out")
def test_draw_a_relation(headwise, tmp_path: Path) -> None:
    singles = [example for example in battery_examples() if not example.has_pair]
    planted, examples = planted_annotations(singles, (("tree", "children", "previous"),))
    planted.model.save_pretrained(tmp_path / "model")
    planted.tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"words": e.words, "heads": e.heads, "relations": e.relations} for e in examples]
    (tmp_path / "trees.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def draw(*arguments: object):
        where = (
            "--model",
            tmp_path / "model",
            "--corpus",
            tmp_path / "trees.jsonl",
            "--out",
            tmp_path / "obj.svg",
        )
        return headwise("draw", *arguments, *where)

    best = draw("--relation", "obj", "--count", "1")
    assert best.code == 0, best.err
    assert (tmp_path / "obj-1.svg").exists()
    assert "obj-1.svg exists; pass overwrite=True" in draw("--relation", "obj").err
    named = draw("L0H1", "--relation", "nsubj", "--count", "2", "--overwrite")
    assert named.code == 0, named.err
    assert (tmp_path / "obj-2.svg").exists()
    assert (
        "--relation draws one head" in draw("L0H0", "L0H1", "--relation", "obj", "--overwrite").err
    )
    assert "--relation draws one head" in draw("all", "--relation", "obj", "--overwrite").err
    assert (
        "There is no relation in this atlas 'dobj'" in draw("--relation", "dobj", "--overwrite").err
    )


def test_ctrl_c_says_how_to_go_on(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(engine_module.ShardFunction, "__call__", interrupted)
    stopped = headwise("atlas", model_folder, "--corpus", corpus_file, "--out", tmp_path / "out")
    assert stopped.code == 130
    assert "repeat the command to resume" in stopped.err


WRONG_FILES = {
    "empty.txt": (b"", "no examples"),
    "utf8.txt": (b"the cat\n\n\xff\xfe broken\n", "utf8.txt.*UTF-8"),
    "nine.conllu": (b"1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\n\n", r"nine.conllu.*\b9\b"),
    "cycle.conllu": (
        b"1\ta\ta\tX\t_\t_\t2\tdep\t_\t_\n2\tb\tb\tX\t_\t_\t1\tdep\t_\t_\n\n",
        "cycle",
    ),
    "row.jsonl": (b'{"text": "the cat"}\n{"txt": "a dog"}\n', r"row.jsonl.*2"),
    "what.xyz": (b"the cat", "ending"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_bad_corpora_are_one_sentence(
    headwise, model_folder: Path, tmp_path: Path, name: str
) -> None:
    content, expected = WRONG_FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    outcome = headwise("atlas", model_folder, "--corpus", path, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    import re

    assert re.search(expected, outcome.err), outcome.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("atlas", "--analyses", "surfaces"), "Did you mean 'surface'"),
        (("run", "surface", "--set", "weight=tokens"), "weighting"),
        (
            ("run", "surface", "--set", "weighting=words"),
            "`weighting` must be one of examples, tokens",
        ),
        (("run", "surface", "--set", "weighting"), "name=value"),
        (("atlas", "--corpus", "missing.txt"), "missing.txt"),
        (("atlas", "no/such-model"), "no/such-model"),
        (("cite", "surfce"), "Did you mean 'surface'"),
        (("atlas", "--overlong", "drop"), "truncate, skip"),
    ],
)
def test_bad_arguments_are_one_sentence(
    headwise,
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "atlas" and "no/such-model" not in arguments:
        arguments = (arguments[0], model_folder, *arguments[1:])
    elif arguments[0] == "run":
        arguments = (*arguments, "--model", model_folder)
    outcome = headwise(*arguments)
    assert outcome.code == 2
    assert expected in outcome.err
    assert "Traceback" not in outcome.err


def test_over_long_examples_are_cut_and_counted_or_all_skipped(
    headwise, model_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("the cat saw a dog " * 60)
    cut = headwise(
        "run", "surface", "--model", model_folder, "--corpus", path, "--out", tmp_path / "a.nc"
    )
    assert cut.code == 0, cut.err
    assert "1 cut" in cut.err
    skipped = headwise(
        "run",
        "surface",
        "--model",
        model_folder,
        "--corpus",
        path,
        "--out",
        tmp_path / "b.nc",
        "--overlong",
        "skip",
    )
    assert skipped.code == 2
    assert "longer than 64 tokens" in skipped.err


def _changed(folder: Path, target: Path, name: str, change) -> Path:
    import shutil

    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    weights[name] = change(weights[name].clone())
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_nan_weights_are_named(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    name = "bert.encoder.layer.1.attention.self.query.weight"

    def spoil(weight: torch.Tensor) -> torch.Tensor:
        weight[0, 0] = torch.nan
        return weight

    outcome = headwise(
        "atlas",
        _changed(model_folder, tmp_path / "nan", name, spoil),
        "--corpus",
        corpus_file,
        "--out",
        tmp_path / "out",
    )
    assert outcome.code == 2
    assert "layer.1.attention.self.query" in outcome.err


def test_a_tokenizer_that_does_not_fit_is_refused(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    import shutil

    other = planted_model([["self"]], words=["the", "cat", *(f"word{i}" for i in range(200))])
    folder = tmp_path / "misfit"
    shutil.copytree(model_folder, folder)
    other.tokenizer.save_pretrained(folder)
    outcome = headwise("atlas", folder, "--corpus", corpus_file, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "tokenizer" in outcome.err


def test_an_output_folder_that_cannot_be_written_is_found_before_any_work(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    outcome = headwise("atlas", model_folder, "--corpus", corpus_file, "--out", blocked / "out")
    assert outcome.code == 2
    assert "cannot be written" in outcome.err
    outcome = headwise(
        "run", "surface", "--model", model_folder, "--corpus", corpus_file, "--out", "."
    )  # has no name
    assert outcome.code == 2
    assert ". is a folder, not a file" in outcome.err


@pytest.mark.usefixtures("only_svg")
def test_compare_ends_in_a_page_and_never_overwrites_one(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    arguments = (
        "compare",
        model_folder,
        model_folder,
        "--names",
        "old,new",
        "--corpus",
        corpus_file,
    )
    arguments += ("--analyses", "none", "--out", tmp_path / "change.nc")
    (tmp_path / "change").mkdir()
    (tmp_path / "change" / "index.html").write_text("mine")
    refused = headwise(*arguments)
    assert refused.code == 2
    assert "--page" in refused.err
    assert (tmp_path / "change" / "index.html").read_text() == "mine"
    assert not (tmp_path / "change.nc").exists()
    done = headwise(*arguments, "--page", tmp_path / "seen")
    assert done.code == 0, done.err
    page = (tmp_path / "seen" / "index.html").read_text()
    assert "What changed from old to new" in page
    assert '"name":"change.cosine_to.new"' in page
    assert '"model":"new"' in page  # the maps of both


@pytest.mark.usefixtures("only_svg")
def test_compare_of_atlases_ends_in_a_page_of_the_family(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        arguments = ("atlas", model_folder, "--corpus", corpus_file, "--analyses", "surface")
        done = headwise(*arguments, "--out", tmp_path / name)
        assert done.code == 0, done.err
    arguments = ("compare", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "family.nc")
    done = headwise(*arguments, "--names", "small,large")
    assert done.code == 0, done.err
    page = (tmp_path / "family" / "index.html").read_text()
    assert "What heads do in models of different shapes" in page
    assert "small · large" in page
    assert "small and large" in done.out
    drawn = headwise("page", tmp_path / "family.nc", "--out", tmp_path / "drawn")
    assert drawn.code == 0, drawn.err
    assert (tmp_path / "drawn" / "index.html").read_text() == page
    again = headwise(*arguments)
    assert again.code == 2
    assert "exists" in again.err
    refused = headwise(*arguments, "--by", "head", "--overwrite")
    assert refused.code == 2
    assert "--by depth" in refused.err
