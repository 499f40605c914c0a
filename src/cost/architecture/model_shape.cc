// SPDX-License-Identifier: Apache-2.0
// From the text of a configuration to the shape of a model.
#include <fmt/format.h>

#include <algorithm>

#include "core/file.h"
#include "cost/architecture/config_keys.h"
#include "cost/architecture/families.h"
#include "cost/architecture/readers.h"
#include "routepack/error.h"
#include "routepack/model_cost.h"

namespace routepack {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 24;

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// The object that describes the language model: the whole, or `text_config` of a model with other parts.
const Json& language_model(const Json& root, const std::string& where, std::vector<std::string>& left_out) {
  const auto text = root.find("text_config");
  if (text == root.end() || text->is_null()) return root;
  for (const char* part : {"vision_config", "audio_config"}) {
    if (root.contains(part)) left_out.push_back(std::string(part, std::string_view(part).find('_')) + " encoder");
  }
  return json_object(*text, where + ": text_config");
}

/// What the file calls itself: model_type of the language model, of the whole file, or its first architecture.
struct Identity {
  std::string model_type;
  std::vector<std::string> architectures;
};

Identity identify(const Json& root, const Json& language, const std::string& where) {
  Identity identity;
  for (const Json* object : {&language, &root}) {
    const ConfigKeys keys(*object, where);
    if (identity.model_type.empty()) identity.model_type = keys.text("model_type").value_or("");
    const Json* names = keys.find("architectures");
    if (names == nullptr || !identity.architectures.empty()) continue;
    for (const Json& name : json_array(*names, where + ": architectures")) {
      identity.architectures.push_back(json_string(name, where + ": architectures"));
    }
  }
  return identity;
}

const Family* find_family(const Identity& identity) {
  std::string_view type = identity.model_type;
  if (type.ends_with("_text")) type.remove_suffix(5);
  for (const Family& family : families()) {
    if (family.model_type == type) return &family;
  }
  for (const Family& family : families()) {
    for (const std::string& name : identity.architectures) {
      if (type.empty() && name.starts_with(family.architecture)) return &family;
    }
  }
  return nullptr;
}

[[noreturn]] void refuse_unknown(const Identity& identity, const ConfigKeys& keys) {
  // The keys of a plain MoE decoder, for those who write a cost file from it.
  std::string absent;
  for (const char* name :
       {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim",
        "num_experts", "num_experts_per_tok", "moe_intermediate_size"}) {
    if (keys.find(name) == nullptr) absent += fmt::format("{}{}", absent.empty() ? "" : ", ", name);
  }
  const std::string named = !identity.model_type.empty()      ? Json(identity.model_type).dump()
                            : !identity.architectures.empty() ? Json(identity.architectures.front()).dump()
                                                              : "nothing";
  throw InvalidInput(fmt::format("{}: model_type: found {}, wanted one of {}; of the usual keys {}; {}", keys.where(),
                                 named, join(model_families()),
                                 absent.empty() ? "none is missing" : "these are missing: " + absent, kInstead));
}

}  // namespace

std::int64_t ModelShape::moe_layers() const {
  return std::ranges::count_if(layers, [](const LayerShape& layer) { return layer.dense_width == 0; });
}

std::vector<std::string> model_families() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.model_type);
  return names;
}

ModelShape parse_model_shape(std::string_view json, const std::string& where) {
  if (json.size() > kMaxConfigBytes) {
    throw FormatError(fmt::format("{}: found {} bytes, wanted at most {}", where, json.size(), kMaxConfigBytes));
  }
  const Json root = parse_json(json, where);
  json_object(root, where);
  ModelShape shape;
  const Json& language = language_model(root, where, shape.left_out);
  ConfigKeys keys(language, where);
  const Identity identity = identify(root, language, where);
  const Family* family = find_family(identity);
  if (family == nullptr) refuse_unknown(identity, keys);

  shape.family = family->model_type;
  shape.hidden = keys.need("hidden_size", kMostWidth);
  shape.vocab = keys.need("vocab_size", kMostVocabulary);
  shape.layers.resize(static_cast<std::size_t>(keys.need({"num_hidden_layers", "num_layers"}, kMostLayers)));
  shape.tied_head = keys.flag("tie_word_embeddings").value_or(false);
  try {
    family->read(keys, shape);
  } catch (const InvalidInput&) {
    if (keys.missing().empty()) throw;
    // A key that contradicts a missing one's stand-in: the missing one is the news.
  }
  note_left_out(keys, shape);
  if (!keys.missing().empty()) {
    std::vector<std::string> missing = keys.missing();
    std::ranges::sort(missing);
    missing.erase(std::ranges::unique(missing).begin(), missing.end());
    throw InvalidInput(fmt::format("{}: {} missing, which {} needs: {}; add {}, {}", where,
                                   missing.size() == 1 ? "a key is" : "keys are", family->model_type, join(missing),
                                   missing.size() == 1 ? "it" : "them", kInstead));
  }
  if (shape.moe_layers() == 0) {
    throw InvalidInput(
        fmt::format("{}: found {} dense layers, wanted an MoE layer among them", where, shape.layers.size()));
  }
  return shape;
}

ModelShape load_model_shape(const std::filesystem::path& path) {
  return parse_model_shape(read_text(path, kMaxConfigBytes), path.string());
}

void require_fits(const ModelShape& shape, std::int64_t layers, std::int64_t experts, std::int64_t top_k,
                  const std::string& where) {
  const std::int64_t moe = shape.moe_layers();
  const std::int64_t all = std::ssize(shape.layers);
  if ((layers == moe || layers == all) && experts == shape.experts && top_k == shape.top_k) return;
  throw InvalidInput(fmt::format(
      "{}: found {} layers of {} experts, top-{}; wanted {} layers of {} experts, top-{}, as {} has them", where,
      layers, experts, top_k, moe == all ? fmt::format("{}", moe) : fmt::format("{} (or all {})", moe, all),
      shape.experts, shape.top_k, shape.family));
}

}  // namespace routepack
