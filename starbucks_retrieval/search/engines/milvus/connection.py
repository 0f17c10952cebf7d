"""Calls to Milvus, repeated while it cannot be reached."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds between attempts
_CALL = 60.0  # seconds that a single call may take; pymilvus repeats it by itself until then
_SLOW = ("flush", "load_collection", "create_index", "release_collection")  # take as long as there is data


class Connection:
    """A connection to Milvus; a call without an answer is repeated after waits that double.

    Args:
        uri: A server (http://…) or a file of Milvus Lite (….db).
        token: user:password.
        timeout: Seconds after which a call is given up.

    Raises:
        UserError: Milvus does not answer within the timeout or refuses a call, or pymilvus is not installed.
    """

    def __init__(self, uri: str, token: str | None = None, timeout: float = 60.0) -> None:
        self.local = "://" not in uri
        if self.local:
            _check_file(uri)
        self.uri = uri
        self.shown = re.sub(r"//[^/@]*@", "//", uri)  # without a password
        self._token = token
        self._timeout = timeout
        self._pymilvus = _import_pymilvus()
        self._client: Any = None

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of MilvusClient and return its result. Raises UserError with the message of Milvus if it refuses."""
        if method not in _SLOW:
            options.setdefault("timeout", max(_CALL, self._timeout))
        import grpc

        wait, end = _FIRST_WAIT, monotonic() + self._timeout
        while True:
            try:
                if self._client is None:
                    self._client = self._pymilvus.MilvusClient(self.uri, token=self._token or "", timeout=_CALL)
                return getattr(self._client, method)(*args, **options)
            except (self._pymilvus.MilvusException, grpc.RpcError) as error:
                message = _message(error)
                if self.local or not _unreachable(error):
                    raise UserError(f"Milvus at {self.shown} refused {method}: {message}", _remedy(message)) from None
                if monotonic() + wait > end:
                    raise UserError(
                        f"no answer from Milvus at {self.shown}: {message}",
                        "start it or check --uri, then run the same command again; a load goes on where it stopped",
                    ) from None
            log.warning("no answer from Milvus at %s (%s); next attempt in %.1f s", self.shown, message, wait)
            self.close()
            sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def schema(self) -> Any:
        """Return an empty schema whose primary keys are given with the rows."""
        return self._pymilvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)

    def index(self, field: str, kind: str, parameters: dict[str, Any]) -> Any:
        """Return the description of an index by inner product, for `create_index`.

        Args:
            field: Name of the vector field, which also names the index.
            kind: Type of the index, such as HNSW.
            parameters: Parameters of building, such as M, by name.
        """
        described = self._pymilvus.MilvusClient.prepare_index_params()
        described.add_index(field, index_name=field, index_type=kind, metric_type="IP", params=parameters)
        return described

    def close(self) -> None:
        """Disconnect from the server, or close the file."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _check_file(uri: str) -> None:
    path = Path(uri)
    if path.suffix != ".db":
        raise UserError(f"--uri {uri} is neither a server nor a file of Milvus Lite", "write http://host:19530 or x.db")
    if not path.absolute().parent.is_dir():
        raise UserError(f"no such folder: {path.absolute().parent}", "create it first, or check --uri")
    if path.is_file():
        raise UserError(f"{uri} is no Milvus Lite database of this version", "name another file; load the store again")


def _import_pymilvus() -> Any:
    try:
        import pymilvus
    except ImportError:
        raise UserError("--engine milvus needs pymilvus", "pip install pymilvus milvus-lite") from None
    # pymilvus logs a traceback before it raises an error, even an expected one; Milvus Lite does so for every call that
    # only servers implement.
    for name in ("pymilvus", "grpc._server"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return pymilvus


def _unreachable(error: Any) -> bool:
    """Return whether another attempt makes sense: there is no connection, or it was lost."""
    import grpc

    lost = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
    code = error.code() if isinstance(error, grpc.RpcError) else error.code
    connecting = code == 2 and "Fail connecting" in str(error)
    return code in lost or connecting


def _message(error: Any) -> str:
    text = str(getattr(error, "message", None) or getattr(error, "details", lambda: error)() or error)
    return " ".join(text.split())[:300]


def _remedy(message: str) -> str:
    if re.search(r"auth|token|credential|permission", message, re.IGNORECASE):
        return "give the right --token (user:password)"
    if re.search(r"lock|in use|another process", message, re.IGNORECASE):
        return "a Milvus Lite file is open to one process at a time; end the other one"
    return "check --uri, --collection and the parameters of the index"
