// SPDX-License-Identifier: Apache-2.0
// Shapes for the tests of model costs.
#pragma once

#include <string>

#include "core/file.h"
#include "core/json.h"
#include "routepack/model_cost.h"

namespace routepack::testing {

/// The text of a file of tests/data/configs.
inline std::string config_text(const std::string& name) {
  return read_text(std::string(ROUTEPACK_SOURCE_DIR) + "/tests/data/configs/" + name + ".json");
}

inline ModelShape shape_of(const std::string& name) {
  return parse_model_shape(config_text(name), name + ".json");
}

/// The same with one member replaced; null stands for a missing one.
inline std::string with(const std::string& text, const std::string& key, const Json& value) {
  Json config = parse_json(text, "test");
  config[key] = value;
  return config.dump();
}

/// Two layers of width 8, both MoE: 4 experts of width 2, top-1, vocabulary of 16; small enough to count by hand.
inline ModelShape small_shape(AttentionShape attention) {
  ModelShape shape;
  shape.family = "small";
  shape.hidden = 8;
  shape.vocab = 16;
  shape.experts = 4;
  shape.top_k = 1;
  shape.moe_width = 2;
  shape.attentions = {std::move(attention)};
  shape.layers = {{}, {}};
  return shape;
}

}  // namespace routepack::testing
