# SPDX-License-Identifier: Apache-2.0
"""Why a step trains on the framework's own packing."""

from __future__ import annotations

import enum

from routepack._errors import Error, InfeasibleError, InvalidInput


class Reason(enum.IntEnum):
    """The value of the metric `routepack/fallback`. Numbers stay; new ones are added at the end."""

    NONE = 0  #: the plan is used
    OFF = 1  #: switched off by a setting
    SETTINGS = 2  #: a setting of the framework makes the gradient depend on the packing
    UNSUPPORTED = 3  #: the framework does something here that no plan can stand for
    NO_ROUTES = 4  #: routes are missing
    BAD_INPUT = 5  #: routes or lengths contradict each other
    INFEASIBLE = 6  #: no layout exists under the cap and the constraints
    DEADLINE = 7  #: the planner did not answer in time, and was ended
    PLANNER_DIED = 8  #: the planner's process ended, or never began
    PLANNER_ERROR = 9  #: the planner said that it failed
    BAD_REPLY = 10  #: what the planner sent is no plan
    BAD_PLAN = 11  #: the plan breaks a rule of the framework
    PLACEMENT = 12  #: experts could not be moved
    INTERNAL = 13  #: anything else: a bug


class FallBack(Error):
    """This step trains on the framework's own packing. The message is one line."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def fall_back_of(error: Exception) -> FallBack:
    """Any exception as a reason and one line."""
    if isinstance(error, FallBack):
        return error
    if isinstance(error, InfeasibleError):
        return FallBack(Reason.INFEASIBLE, one_line(error))
    if isinstance(error, InvalidInput):
        return FallBack(Reason.BAD_INPUT, one_line(error))
    return FallBack(Reason.INTERNAL, f"{type(error).__name__}: {one_line(error)}")


def one_line(error: object) -> str:
    """What an exception says, on one line of reasonable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 500 else text[:497] + "..."
