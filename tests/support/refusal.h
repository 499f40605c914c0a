// SPDX-License-Identifier: Apache-2.0
// What a call says when it refuses its input.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace routepack::testing {

/// The message of the `Exception` (or a class below it) that `call` throws. Fails the test when it throws none, and
/// when the message is not one line.
template <class Exception, class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Exception& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find_first_of("\n\r"), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

}  // namespace routepack::testing
