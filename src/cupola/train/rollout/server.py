"""A vLLM server's routes over HTTP: patient where it only asks, and clear about what went wrong."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from typing import Any

import httpx

from cupola.core.records import SamplerError

#: Seconds before the second attempt; each further wait is twice as long.
FIRST_WAIT = 0.5

#: No wait is longer, and a connection that takes longer is none.
LONGEST_WAIT = 10.0

Json = dict[str, Any]


class Server:
    """Asks one server. Every failure is a SamplerError that names the address and what to do."""

    def __init__(self, url: str, timeout: float, retries: int) -> None:
        self.url = url.rstrip("/")
        self.retries = retries
        self._timeout = timeout
        self._client = httpx.Client(timeout=httpx.Timeout(timeout, connect=LONGEST_WAIT))
        weakref.finalize(self, self._client.close)

    def get(self, path: str) -> Json:
        """The answer to a question that changes nothing."""
        return self._patiently("GET", path, None)

    def ask(self, path: str, body: Mapping[str, Any]) -> Json:
        """The answer to a question that may be repeated: one that changes nothing, though it is posted."""
        return self._patiently("POST", path, body)

    def order(self, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """The answer to what changes the server, asked once: it may have been done though its answer was lost."""
        try:
            return self._once("POST", path, body)
        except _Unanswered as failure:
            raise SamplerError(f"{self.url}{path}: {failure}") from failure

    def _patiently(self, method: str, path: str, body: Mapping[str, Any] | None) -> Json:
        for attempt in range(self.retries + 1):
            try:
                return self._once(method, path, body)
            except _Unanswered as failure:
                last = failure
            if attempt < self.retries:
                time.sleep(min(FIRST_WAIT * 2**attempt, LONGEST_WAIT))
        raise SamplerError(f"{self.url}{path}: {last} ({self.retries + 1} attempts)") from last

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None) -> Json:
        """One attempt. Raises `_Unanswered` for what another attempt may mend, SamplerError for a refusal."""
        try:
            reply = self._client.request(method, self.url + path, json=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _Unanswered("no server there; start it (docs/vllm.md), or correct sampler.url") from error
        except httpx.TimeoutException as error:
            raise _Unanswered(
                f"no answer within {self._timeout:g} s; look into the server's log, or raise sampler.timeout"
            ) from error
        except httpx.TransportError as error:
            raise _Unanswered(f"the connection broke off ({error}); look into the server's log") from error
        if reply.status_code >= 500:
            raise _Unanswered(f"error {reply.status_code} ({_reason(reply)}); look into the server's log")
        if reply.status_code >= 400:
            raise SamplerError(f"{self.url}{path}: refused with {reply.status_code}: {_reason(reply)}{_hint(reply)}")
        if not reply.content:
            return {}
        return _json(reply)


class _Unanswered(Exception):
    """No answer, or none that can be read."""


def _json(reply: httpx.Response) -> Json:
    try:
        found = reply.json()
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    raise _Unanswered(
        f"the answer is no JSON object, it begins with {reply.text[:40]!r}; is sampler.url a vLLM server's address?"
    )


def _reason(reply: httpx.Response) -> str:
    """What the server says of an error, in one line: vLLM's `error.message`, FastAPI's `detail`, or the text."""
    try:
        body = reply.json()
    except ValueError:
        body = None
    inner = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    said = inner.get("message") if isinstance(inner, dict) else inner
    return " ".join(str(said or reply.text or reply.reason_phrase).split())[:300]


def _hint(reply: httpx.Response) -> str:
    """vLLM has the routes that training needs only where it was asked for them."""
    if reply.status_code not in (404, 405) or "error" in reply.text:
        return ""
    return "; start the server with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out (docs/vllm.md)"
