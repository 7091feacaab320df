"""What is found out about an effect immediately before it asks for leave, where its declaration alone says what that is."""

from __future__ import annotations

from typing import Any

from outlast.replay.command import IntendEffect
from outlast.replay.context import EffectRequest
from outlast.worker.gate import Demand, Found
from outlast.workflows.definition import Effect


def action_of(command: IntendEffect, request: EffectRequest) -> EffectRequest:
    """Return the action that is to run: the call, or what an approver has made of it.

    Raises:
        DecodeError: What was approved does not fit the effect as it is declared now.
    """
    if not command.effective or request.remake is None:
        return request
    return request.remake(command.effective)


def declared(command: IntendEffect, request: EffectRequest, effect: Effect[..., Any]) -> Found:
    """Return what the effect's own declaration demands."""
    approval = effect.rules.approval
    demands = () if approval is None else (Demand("declared", approval.terms),)
    return Found(action_of(command, request), demands)
