"""Who may do what: a policy as data, and the verdict on one call at the time of the call.

Calls and policies go in, verdicts come out. Only `PolicyFile` reads a file, and only `StoreAuthority` and
`local_user` a store. Knows no worker.
"""

from outlast.policy.annotation import Annotations, TrustedServers, definition_sha256
from outlast.policy.authority import Held
from outlast.policy.call import ToolCall
from outlast.policy.engine import decide
from outlast.policy.explain import explain
from outlast.policy.file import PolicyFile
from outlast.policy.lint import Finding, check, strict
from outlast.policy.opinion import Allow, Ask, Deny, Narrow
from outlast.policy.pin import Pin, Pins
from outlast.policy.policy import Policy
from outlast.policy.predicate import Predicate
from outlast.policy.rule import Rule
from outlast.policy.stop import Stop, Stops
from outlast.policy.toml import policy_of, toml_of
from outlast.policy.tool import ForeignTool
from outlast.policy.verdict import Allowed, Asked, Denied, Look
from outlast.policy.window import Window

__all__ = [
    "Allow",
    "Allowed",
    "Annotations",
    "Ask",
    "Asked",
    "Denied",
    "Deny",
    "Finding",
    "ForeignTool",
    "Held",
    "Look",
    "Narrow",
    "Pin",
    "Pins",
    "Policy",
    "PolicyFile",
    "Predicate",
    "Rule",
    "Stop",
    "Stops",
    "ToolCall",
    "TrustedServers",
    "Window",
    "check",
    "decide",
    "definition_sha256",
    "explain",
    "policy_of",
    "strict",
    "toml_of",
]
