"""The labelling tool: what is on the disk after every key, going on later, undo, agreement,
refusing what is wrong."""

from __future__ import annotations

import base64
import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headwise.analyses.patterns import (
    PATTERNS,
    Label,
    cohen_kappa,
    read_labels,
    read_maps,
    save_maps,
)
from headwise.analyses.patterns.store import append_label
from headwise.core.errors import InputError, ParameterError

TOOL = Path(__file__).parents[2] / "tools" / "label_maps"
sys.path.insert(0, str(TOOL))
from label_maps import KEYS, LabelServer, LabelSession, main, serve_labels  # noqa: E402


@pytest.fixture
def maps_file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    maps = {f"m/{k}": rng.dirichlet(np.ones(5 + k), 5 + k) for k in range(6)}
    save_maps(tmp_path / "maps.npz", maps)
    return tmp_path / "maps.npz"


def test_maps_keep_their_weights(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).dirichlet(np.full(40, 0.1), 40)
    save_maps(tmp_path / "m.npz", {"a": weights})
    back = read_maps(tmp_path / "m.npz")["a"]
    assert np.abs(back - weights).max() < 0.004
    np.savez(tmp_path / "float.npz", a=weights)
    np.testing.assert_allclose(read_maps(tmp_path / "float.npz")["a"], weights, rtol=1e-6)


def test_every_label_is_kept_and_a_later_sitting_goes_on(maps_file: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    session = LabelSession(maps_file, labels, "Ada")
    shown = []
    for pattern in PATTERNS[:3]:
        name = session.next()["id"]
        shown.append(name)
        session.say(name, pattern)
        assert read_labels(labels)[-1] == Label(name, pattern, "Ada", 1)
    again = LabelSession(maps_file, labels, "Ada")
    assert again.next()["done"] == 3
    order = [*shown]
    while (name := again.next()["id"]) is not None:
        order.append(name)
        again.say(name, "block")
    assert sorted(order) == sorted(read_maps(maps_file))
    assert (
        LabelSession(maps_file, labels, "Ben").next()["done"] == 0
    )  # another labeller starts at the beginning


def test_undo_shows_the_map_again_and_survives_a_restart(maps_file: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    session = LabelSession(maps_file, labels)
    first = session.next()["id"]
    session.say(first, "vertical")
    second = session.next()["id"]
    session.say(second, "block")
    assert session.undo() == second
    assert session.next()["id"] == second
    session = LabelSession(maps_file, labels)
    assert session.next()["id"] == second
    assert [(label.id, label.label) for label in read_labels(labels)] == [(first, "vertical")]
    assert session.undo() == first
    assert session.undo() is None
    assert (
        labels.read_text().count("\n") == 5
    )  # header, two labels, two withdrawals: rows are only ever added


def test_agreement_is_kappa_over_maps_both_labelled(maps_file: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    names = sorted(read_maps(maps_file))
    ada = dict(zip(names, ["vertical", "vertical", "diagonal", "block", "block"], strict=False))
    ben = dict(
        zip(names[1:], ["vertical", "diagonal", "block", "diagonal", "heterogeneous"], strict=False)
    )
    for who, said in (("Ada", ada), ("Ben", ben)):
        for name, pattern in said.items():
            append_label(labels, Label(name, pattern, who))
    both = names[1:5]
    got = LabelSession(maps_file, labels, "Ben").agreement()["Ada, pass 1"]
    assert (got.n, got.kappa) == (
        4,
        cohen_kappa([ada[n] for n in both], [ben[n] for n in both]).kappa,
    )
    append_label(labels, Label(names[1], "block", "Ben", 2))
    assert LabelSession(maps_file, labels, "Ben", round=2).agreement()["Ben, pass 1"].n == 1


def test_the_shown_shade_is_that_of_the_guide(maps_file: Path, tmp_path: Path) -> None:
    session = LabelSession(maps_file, tmp_path / "labels.csv")
    state = session.next()
    weights = read_maps(maps_file)[state["id"]]
    shade = np.frombuffer(base64.b64decode(state["shade"]), np.uint8).reshape(weights.shape)
    np.testing.assert_array_equal(
        shade, np.rint(255 * np.sqrt(np.clip(weights / np.quantile(weights, 0.99), 0, 1)))
    )


def bad_tables() -> list[tuple[str, str]]:
    return [
        (
            "id,label,labeller,pass\nm/0,block,a,1\nm/9,block,a,1\n",
            r"line 3: there is no map 'm/9'",
        ),
        (
            "id,label,labeller,pass\nm/0,blok,a,1\n",
            r"line 2: There is no pattern 'blok'. Did you mean 'block'",
        ),
        (
            "id,label,labeller,pass\nm/0,block,a,one\n",
            r"line 2: `pass` must be a whole number; it is 'one'",
        ),
        ("id,label\nm/0,block\n", r"line 1: .*labeller, pass is missing"),
    ]


@pytest.mark.parametrize(("content", "sentence"), bad_tables())
def test_bad_label_files_are_named(
    maps_file: Path, tmp_path: Path, content: str, sentence: str
) -> None:
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(InputError, match=sentence):
        LabelSession(maps_file, tmp_path / "labels.csv")


def test_bad_map_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        LabelSession(tmp_path / "none.npz", tmp_path / "l.csv")
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(InputError, match="cannot be read"):
        read_maps(tmp_path / "text.npz")
    np.savez(tmp_path / "flat.npz", a=np.ones((2, 3)))
    with pytest.raises(InputError, match=r"map 'a' must be a square.*\[2, 3\]"):
        read_maps(tmp_path / "flat.npz")
    np.savez(tmp_path / "object.npz", a=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="cannot be read"):  # no pickle is ever loaded
        read_maps(tmp_path / "object.npz")


def test_a_row_cut_short_does_not_swallow_the_next(maps_file: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label,labeller,pass\nm/0,block,a,1")
    append_label(labels, Label("m/1", "vertical", "a"))
    assert [label.id for label in read_labels(labels)] == ["m/0", "m/1"]


@pytest.fixture
def server(maps_file: Path, tmp_path: Path) -> Iterator[str]:
    with LabelServer(LabelSession(maps_file, tmp_path / "labels.csv", "Ada")) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made.address.removesuffix("/")
        made.shutdown()
        thread.join()


def post(address: str, content: object, **headers: str) -> dict:
    request = urllib.request.Request(
        address, json.dumps(content).encode(), {"Content-Type": "application/json", **headers}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_the_page_over_http(server: str, tmp_path: Path) -> None:
    with urllib.request.urlopen(server + "/") as answer:
        page = answer.read().decode()
    assert "http://" not in page  # self-contained: nothing is fetched from elsewhere
    assert "https://" not in page
    with urllib.request.urlopen(server + "/next") as answer:
        state = json.load(answer)
    assert state["keys"] == KEYS
    after = post(server + "/label", {"id": state["id"], "label": "diagonal"})
    assert after["done"] == 1
    assert after["id"] != state["id"]
    assert read_labels(tmp_path / "labels.csv") == [Label(state["id"], "diagonal", "Ada", 1)]
    assert post(server + "/undo", {})["id"] == state["id"]


@pytest.mark.parametrize(
    ("path", "content", "headers", "code"),
    [
        ("/label", {"id": "m/77", "label": "block"}, {}, 400),
        ("/label", {"id": "m/1", "label": "blob"}, {}, 400),
        ("/label", ["m/1"], {}, 400),
        ("/elsewhere", {}, {}, 404),
        ("/label", {"id": "m/1", "label": "block"}, {"Content-Type": "text/plain"}, 403),
        ("/label", {"id": "m/1", "label": "block"}, {"Origin": "http://evil.example"}, 403),
        ("/label", {"id": "m/1", "label": "block"}, {"Host": "evil.example"}, 403),
    ],
)
def test_the_server_refuses(
    server: str, tmp_path: Path, path: str, content: object, headers: dict[str, str], code: int
) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server + path, content, **headers)
    assert caught.value.code == code
    assert not (tmp_path / "labels.csv").exists()


def test_serve_says_address_and_agreement(
    maps_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = tmp_path / "labels.csv"
    for who in ("Ada", "Ben"):
        append_label(labels, Label("m/0", "block", who))
        append_label(labels, Label("m/1", "vertical", who))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LabelServer, "serve_forever", interrupted)
    said: list[str] = []
    got = serve_labels(maps_file, labels, 0, open_browser=False, labeller="Ben", say=said.append)
    assert got["Ada, pass 1"].kappa == 1
    assert "http://127.0.0.1:" in said[0]
    assert "2 of 6 maps labelled by Ben" in said[1]
    assert "Ada" in said[2]


def test_a_port_in_use_is_a_sentence(maps_file: Path, tmp_path: Path) -> None:
    session = LabelSession(maps_file, tmp_path / "labels.csv")
    with LabelServer(session) as made:
        port = made.server_address[1]
        with pytest.raises(ParameterError, match=f"Port {port} cannot be used"):
            LabelServer(session, port)


def test_a_file_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="missing"):
        main([str(tmp_path / "missing.npz"), str(tmp_path / "labels.csv"), "--no-browser"])
