// SPDX-License-Identifier: Apache-2.0
#include "routepack/device.h"

#include "core/file.h"
#include "core/toml.h"

namespace routepack {
namespace {

double need(const TomlTable& table, std::string_view key, double min, double max) {
  const auto value = table.number(key, min, max);
  if (!value) table.fail(key, "missing, wanted a number");
  return *value;
}

TomlTable need_table(const TomlTable& root, std::string_view key) {
  auto table = root.table(key);
  if (!table) root.fail(key, "missing, wanted a table");
  return *std::move(table);
}

}  // namespace

Device Device::load(const std::filesystem::path& path) {
  return parse(read_text(path, kMaxTomlBytes), path.string());
}

Device Device::parse(const std::string& toml, const std::string& where) {
  constexpr double kLeast = 1e-6;  // nothing may be zero: times divide by it
  constexpr double kMost = 1e9;
  const TomlTable root = TomlTable::parse(toml, where);
  root.refuse_unknown_keys({"name", "peak_tflops", "memory_gbytes_per_second", "reached", "links"});
  const TomlTable reached = need_table(root, "reached");
  reached.refuse_unknown_keys({"dense", "grouped", "attention", "linear_attention"});
  const TomlTable links = need_table(root, "links");
  links.refuse_unknown_keys({"near_gbytes_per_second", "near_reached", "far_gbytes_per_second", "far_reached"});

  Device device;
  device.name = root.string("name").value_or("");
  if (device.name.empty()) root.fail("name", "missing, wanted the name of the device");
  device.peak_flops = 1e12 * need(root, "peak_tflops", kLeast, kMost);
  device.memory_rate = 1e9 * need(root, "memory_gbytes_per_second", kLeast, kMost);
  device.dense_flops = device.peak_flops * need(reached, "dense", kLeast, 1.0);
  device.grouped_flops = device.peak_flops * need(reached, "grouped", kLeast, 1.0);
  device.attention_flops = device.peak_flops * need(reached, "attention", kLeast, 1.0);
  device.linear_flops = device.peak_flops * need(reached, "linear_attention", kLeast, 1.0);
  device.near_rate =
      1e9 * need(links, "near_gbytes_per_second", kLeast, kMost) * need(links, "near_reached", kLeast, 1.0);
  device.far_rate = 1e9 * need(links, "far_gbytes_per_second", kLeast, kMost) * need(links, "far_reached", kLeast, 1.0);
  return device;
}

}  // namespace routepack
