# SPDX-License-Identifier: Apache-2.0
"""What a step planned on Ray logs, beyond the metrics of the plan. Names stay."""

from __future__ import annotations

from collections.abc import Mapping

METRICS: Mapping[str, str] = {
    "routepack/fallback": "0: there is a plan; else the number of a `routepack.adapters.Reason`",
    "routepack/used": "1 when there is a plan",
    "routepack/steps": "steps since the start",
    "routepack/fallbacks": "steps since the start without a plan",
    "routepack/planner_restarts": "planner actors that had to be started again, since the start",
    "routepack/ray_counters": "counting actors",
    "routepack/ray_counters_lost": "of those: gave no counts for this step, or were started again since the last one",
    "routepack/ray_counter_restarts": "counting actors that died or stalled, since the start",
    "routepack/ray_samples_recounted": "samples of this step that were counted again from their source",
    "routepack/samples_without_routes": "samples of this step without a recorded row, those marked included",
    "routepack/ray_samples_marked": "samples of this step whose counts were lost or never came; they count as no load",
    "routepack/ray_samples_duplicate": "counts of samples that came twice, or to two actors; one of each is used",
    "routepack/ray_samples_unused": "samples counted for this window that the step does not have",
    "routepack/ray_samples_dropped": "samples of windows that actors dropped to make room, since the step before",
    "routepack/ms_routes": "gathering the counts, counting again included, milliseconds",
    "routepack/ms_ray_recount": "of that: counting again",
    "routepack/ms_planner": "from the request to the plan, milliseconds",
    "routepack/ms_ray_window": "of that: fetching parts and making one window of them",
    "routepack/ms_check": "of that: checking the plan",
    "routepack/ms_adapter": "from its turn to the plan, milliseconds",
}
