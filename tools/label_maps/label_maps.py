"""Label attention maps by looking at them: a local page shows one map at a time and takes one key.

    python tools/label_maps/label_maps.py maps.npz labels.csv --labeller anna

The patterns are vertical, diagonal, vertical+diagonal, block, heterogeneous (Kovaleva et al. 2019,
section 4.1). The table of labels is only ever added to: repeat the command to continue. A second
labeller gives the agreement (Cohen's kappa).
"""

from __future__ import annotations

import argparse
import base64
import json
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from headwise.analyses.patterns.network import PATTERNS
from headwise.analyses.patterns.store import Label, append_label, read_labels, read_maps, shade
from headwise.core.errors import HeadwiseError, InputError, ParameterError
from headwise.core.loopback import (
    HEADERS,
    HOST,
    JSON_TYPE,
    NO_SUCH_PAGE,
    POLICY,
    Guard,
    RequestRejected,
    body_length,
    content_of,
)
from headwise.stats.agreement import Kappa, cohen_kappa

KEYS = {
    "v": "vertical",
    "d": "diagonal",
    "m": "vertical+diagonal",
    "b": "block",
    "h": "heterogeneous",
}


class LabelSession:
    """One labeller's way through the maps: which is next, what was said, and how it agrees with
    others.

    Parameters
    ----------
    maps_file : Path
        An .npz file of square maps by id.
    labels_file : Path
        The table that rows are added to; made where there is none. Maps this labeller has labelled
        in this pass are not shown again.
    labeller : str, default ""
        Who labels.
    round : int, default 1
        Which pass this is; a second pass of the same labeller shows the maps again, in another
        order.
    """

    def __init__(
        self, maps_file: Path, labels_file: Path, labeller: str = "", round: int = 1
    ) -> None:
        if "\n" in labeller or "\r" in labeller:
            raise ParameterError("`labeller` must be a name on one line.")
        if round < 1:
            raise ParameterError(f"`round` must be at least 1; it is {round}.")
        self.maps = read_maps(maps_file)
        if not self.maps:
            raise InputError(f"{maps_file} holds no maps.")
        self.labels_file = Path(labels_file)
        if not self.labels_file.parent.is_dir():
            raise InputError(f"The folder of {labels_file} does not exist; make it first.")
        self.labeller = labeller
        self.round = round
        self._lock = threading.Lock()
        labels = read_labels(self.labels_file, self.maps) if self.labels_file.exists() else []
        self._done = {label.id: label.label for label in labels if self._own(label)}
        self._history = list(self._done)
        names = list(self.maps)
        # A fixed shuffle: neighbouring maps do not come from one text, and a later sitting goes on
        # in the same order.
        self._order = [names[k] for k in np.random.default_rng(round).permutation(len(names))]

    def _own(self, label: Label) -> bool:
        return label.labeller == self.labeller and label.round == self.round

    def next(self) -> dict[str, Any]:
        """What the page shows now: the next map without a label, or that all are done."""
        with self._lock:
            name = next((name for name in self._order if name not in self._done), None)
            last = self._done.get(self._history[-1]) if self._history else None
            state: dict[str, Any] = {
                "done": len(self._done),
                "total": len(self.maps),
                "labeller": self.labeller,
            }
            state |= {"keys": KEYS, "id": name, "last": last}
        if name is None:
            state["agreement"] = [f"{who}: {kappa}" for who, kappa in self.agreement().items()]
            return state
        weights = self.maps[name]
        shown = np.rint(255 * shade(weights)).astype(np.uint8).tobytes()
        return state | {"n": len(weights), "shade": base64.b64encode(shown).decode("ascii")}

    def say(self, name: str, label: str) -> None:
        """Keep a label; it is on the disk when this returns."""
        if name not in self.maps:
            raise InputError(f"There is no map '{name}' in the maps file.")
        if label not in PATTERNS:
            raise ParameterError(f"`label` must be one of {', '.join(PATTERNS)}; it is '{label}'.")
        with self._lock:
            append_label(self.labels_file, Label(name, label, self.labeller, self.round))
            if name in self._done:
                self._history.remove(name)
            self._done[name] = label
            self._history.append(name)

    def undo(self) -> str | None:
        """Take the last label back (by a row with an empty label): its map is shown again. Its id,
        None for none."""
        with self._lock:
            if not self._history:
                return None
            name = self._history.pop()
            append_label(self.labels_file, Label(name, "", self.labeller, self.round))
            del self._done[name]
            return name

    def agreement(self) -> dict[str, Kappa]:
        """Cohen's kappa with all other labellers and with this one's other passes, over the maps
        both have labelled."""
        if not self.labels_file.exists():
            return {}
        others: dict[str, dict[str, str]] = {}
        for label in read_labels(self.labels_file, self.maps):
            if not self._own(label):
                others.setdefault(f"{label.labeller or 'unnamed'}, pass {label.round}", {})[
                    label.id
                ] = label.label
        out = {}
        for who, theirs in sorted(others.items()):
            shared = [name for name in self._order if name in theirs and name in self._done]
            out[who] = cohen_kappa(
                [self._done[name] for name in shared], [theirs[name] for name in shared]
            )
        return out


def serve_labels(
    maps_file: Path,
    labels_file: Path,
    port: int = 0,
    open_browser: bool = True,
    labeller: str = "",
    round: int = 1,
    say: Callable[[str], None] = print,
) -> dict[str, Kappa]:
    """Serve the labelling page until interrupted, then say and return the agreement with all others
    in the label file.

    Parameters
    ----------
    maps_file, labels_file : Path
        Maps by id (.npz), and the table of labels, which is only ever added to: a later call
        continues.
    port : int, default 0
        Port on 127.0.0.1; 0 takes any free one.
    open_browser : bool, default True
        Whether to open the page at once.
    labeller : str, default ""
        Who labels.
    round : int, default 1
        In which pass.
    say : callable, default print
        Where the address and the agreement are printed.
    """
    session = LabelSession(Path(maps_file), Path(labels_file), labeller, round)
    with LabelServer(session, port) as server:
        address = server.address
        keys = ", ".join(f"{key} {name}" for key, name in KEYS.items())
        say(
            f"Labelling {len(session.maps)} maps at {address} ({keys}, u undo); stop with Ctrl-C, every label is kept."
        )
        if open_browser:
            threading.Timer(0.3, webbrowser.open, [address]).start()
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    agreement = session.agreement()
    say(
        f"{session.next()['done']} of {len(session.maps)} maps labelled{f' by {labeller}' if labeller else ''}."
    )
    for who, kappa in agreement.items():
        say(f"Agreement with {who}: {kappa}")
    return agreement


PAGE = Path(__file__).with_name("label.html")
LONGEST_BODY = 10_000  # bytes; the page sends a hundred
PATIENCE = 20.0  # seconds that a request may take to arrive
INLINE = {
    "Content-Security-Policy": f"{POLICY}script-src 'unsafe-inline'; style-src 'unsafe-inline'"
}


class LabelServer(ThreadingHTTPServer):
    """A server on this machine alone, whose address has a token in it that nobody can guess.

    A request is answered only if it names this server as its host, comes from no other page, has
    the token, and is short. Requests name maps by their id among those loaded: no part of one ever
    becomes a path.

    Parameters
    ----------
    session : LabelSession
        The labelling.
    port : int, default 0
        The port; 0 takes any free one.
    """

    daemon_threads = True

    def __init__(self, session: LabelSession, port: int = 0) -> None:
        self.guard = Guard()
        try:
            super().__init__((HOST, port), partial(_Handler, session))
        except (OSError, OverflowError) as error:
            raise ParameterError(
                f"Port {port} cannot be used ({error}); choose another or 0 for any."
            ) from error
        self.guard.port = self.server_port

    @property
    def token(self) -> str:
        """What nobody else can guess."""
        return self.guard.token

    @property
    def address(self) -> str:
        """Where the page is."""
        return self.guard.address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that breaks off is no news."""


class _Handler(BaseHTTPRequestHandler):
    """Answers the page's few requests."""

    timeout = PATIENCE
    server: LabelServer

    def __init__(self, session: LabelSession, *args: Any) -> None:
        self.session = session
        super().__init__(*args)

    def do_GET(self) -> None:
        try:
            asked = self._asked()
            if asked == "":
                page = PAGE.read_bytes()
                self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page)
            elif asked == "next":
                self._json(HTTPStatus.OK, self.session.next())
            else:
                raise RequestRejected(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE)
        except RequestRejected as refused:
            self._refuse(refused)

    def do_POST(self) -> None:
        try:
            asked = self._asked()
            content = self._content()
            if asked == "label":
                self.session.say(str(content.get("id")), str(content.get("label")))
            elif asked == "undo":
                self.session.undo()
            else:
                raise RequestRejected(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE)
            self._json(HTTPStatus.OK, self.session.next())
        except RequestRejected as refused:
            self._refuse(refused)
        except HeadwiseError as error:
            self._json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except OSError as error:
            self._json(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                {"error": f"The label could not be written ({error})."},
            )

    def _asked(self) -> str:
        headers = self.headers
        return self.server.guard.requested(
            headers.get_all("Host", []), headers.get_all("Origin", []), self.path
        )

    def _content(self) -> dict[str, Any]:
        lengths, chunked = (
            self.headers.get_all("Content-Length", []),
            "Transfer-Encoding" in self.headers,
        )
        return content_of(
            self.rfile.read(
                body_length(self.headers.get_content_type(), lengths, chunked, LONGEST_BODY)
            )
        )

    def _refuse(self, refused: RequestRejected) -> None:
        self._json(refused.status, {"error": refused.why})

    def _json(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._answer(status, JSON_TYPE, json.dumps(content).encode())

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.close_connection = True
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            **HEADERS,
            **INLINE,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        """No versions for strangers."""
        return "headwise"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is for the address and the agreement."""


def main(arguments: list[str] | None = None) -> None:
    """Serve the page for the maps and labels named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("maps", type=Path, metavar="MAPS.npz", help="maps by id")
    parser.add_argument("labels", type=Path, metavar="LABELS.csv", help="the table of labels")
    parser.add_argument("--labeller", default="", help="who labels")
    parser.add_argument("--pass", dest="round", type=int, default=1, help="which pass")
    parser.add_argument("--port", type=int, default=0, help="port on this machine; 0: any free one")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")
    options = parser.parse_args(arguments)
    try:
        serve_labels(
            options.maps,
            options.labels,
            port=options.port,
            open_browser=not options.no_browser,
            labeller=options.labeller,
            round=options.round,
        )
    except HeadwiseError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
