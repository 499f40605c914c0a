// SPDX-License-Identifier: Apache-2.0
#include "core/hash.h"
#include "core/json_text.h"
#include "routepack/plan_file.h"

namespace routepack {

std::string plan_hash(const std::string& json) {
  Json plan = parse_json(json, "plan");
  json_object(plan, "plan");
  plan.erase("timings_ms");
  plan.erase("version");
  if (const auto params = plan.find("params"); params != plan.end() && params->is_object()) params->erase("threads");
  Xxh3 hash;
  hash.text(canonical_json(plan));
  return hash.digest();
}

}  // namespace routepack
