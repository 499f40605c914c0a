// SPDX-License-Identifier: Apache-2.0
// A plan as Python sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanobind.h"
#include "routepack/bounds.h"
#include "routepack/plan.h"
#include "routepack/plan_file.h"

namespace routepack::python {

/// What a plan file does not hold: only the process that made the plan has it.
struct Measured {
  Bounds bounds;
  std::vector<double> joint;  ///< J[r, g], [R, G]
  std::string because;        ///< the rule that binds the lower bound of the rows
};

/// A plan that was read is written again as it was, and has the hash of its file, although a record holds less than the
/// text says. Copies share the text.
class PlanObject : public PlanRecord {
 public:
  /// Read from `text`.
  PlanObject(PlanRecord record, std::string text)
      : PlanRecord(std::move(record)), text_(std::make_shared<const std::string>(std::move(text))) {}
  /// Made here; the text is made when somebody asks for it.
  PlanObject(PlanRecord record, Measured measured)
      : PlanRecord(std::move(record)), measured_(std::make_shared<const Measured>(std::move(measured))) {}

  /// That of the file. Only with the GIL.
  [[nodiscard]] const std::string& text() const {
    if (!text_) text_ = std::make_shared<const std::string>(to_json(*this));
    return *text_;
  }
  /// Null for a plan that was read.
  [[nodiscard]] const Measured* measured() const { return measured_.get(); }

 private:
  mutable std::shared_ptr<const std::string> text_;
  std::shared_ptr<const Measured> measured_;
};

/// @throws InvalidInput for maps that are none
Placement placement_of(const PlanObject& plan);

/// The reports, also those of a plan that was read; none when its file has none, or something else in their place.
std::optional<SearchReport> search_of(const PlanObject& plan);
std::optional<PlacementReport> placing_of(const PlanObject& plan);

/// W[r, g, l, p], [R, G, L, P], padding included. @throws InvalidInput when the plan is for another window
std::vector<std::int64_t> rank_loads(const PlanObject& plan, const Window& window);

/// Everything that a dashboard shows, under names that begin with «routepack/».
nb::dict metrics_of(const PlanObject& plan);

}  // namespace routepack::python
