// SPDX-License-Identifier: Apache-2.0
// rapidcheck with a fixed number of cases and a fixed seed, so that a test run today is the run of yesterday.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>

namespace routepack::testing {

/// Checks `property` on `cases` drawn inputs and fails the running test with the smallest counterexample found. The
/// environment variable RC_PARAMS (rapidcheck's own) overrides seed and number of cases.
template <class Property>
void for_all(int cases, Property property) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  rc::detail::TestMetadata metadata;
  metadata.id = std::string(test->test_suite_name()) + "/" + test->name();
  metadata.description = test->name();
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  if (std::getenv("RC_PARAMS") == nullptr) {
    params.seed = 20260101;
    params.maxSuccess = cases;
  }
  const auto result = rc::detail::checkTestable(std::move(property), metadata, params);
  if (!result.template is<rc::detail::SuccessResult>()) {
    std::ostringstream message;
    rc::detail::printResultMessage(result, message);
    FAIL() << message.str();
  }
}

/// A number from min to max, both included; shrinks towards min.
inline std::int32_t draw(std::int32_t min, std::int32_t max) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::int32_t>(min, max + 1));
}

/// A seed for contents that need not shrink.
inline std::uint64_t draw_seed() {
  return *rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<std::uint64_t>()));
}

}  // namespace routepack::testing
