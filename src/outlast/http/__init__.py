"""The Idempotency-Key header on both sides: a server that carries a request out once, and (`transport`, `carry`) a client that sends keys.

The health of a worker (`health`). And what people are asked: a page behind each link (`approvals`), and decisions that come in as signed webhooks (`Sender`).

Nothing of the rest of Outlast imports it. Needs the extra `http`; pages and webhooks need `notify` too. May import whatever lies below the command line, and no web framework.
"""

from importlib.util import find_spec as _find_spec

if _find_spec("http_sf") is None:
    raise ModuleNotFoundError(
        "outlast.http needs http-sf: in a clone of Outlast, pip install '.[http]'", name="http_sf"
    )

from outlast.http.answer import Answer
from outlast.http.approval import approvals
from outlast.http.decision import Sender
from outlast.http.health import health
from outlast.http.key import KeyFormat
from outlast.http.middleware import IdempotencyMiddleware
from outlast.http.page import PublishedPolicy
from outlast.http.policy import IdempotencyPolicy, keeps_header, keeps_status
from outlast.http.request import DoubtfulRequest, GuardedRequest, fingerprint_of, guarded
from outlast.http.route import Idempotent, idempotent

__all__ = [
    "Answer",
    "DoubtfulRequest",
    "GuardedRequest",
    "IdempotencyMiddleware",
    "IdempotencyPolicy",
    "Idempotent",
    "KeyFormat",
    "PublishedPolicy",
    "Sender",
    "approvals",
    "fingerprint_of",
    "guarded",
    "health",
    "idempotent",
    "keeps_header",
    "keeps_status",
]
