// SPDX-License-Identifier: Apache-2.0
// Processes that plan together over messages that a Python object carries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanobind.h"
#include "routepack/communicator.h"
#include "run.h"

namespace routepack::python {

/// One plan of a team. Every rank calls the carrier's all_gather equally often, whatever happens: a rank that ends
/// early says so in place of what it would have said, and then all have ended. So a team lives on after a plan that
/// failed, and a message that belongs to something else is recognised.
class PythonTeam final : public Communicator {
 public:
  /// A member that the others go on without.
  struct Loss {
    std::string what;  ///< names the rank
  };

  /// `carrier` is a routepack.team.Communicator, called in the calling thread of `conductor`. With the GIL.
  /// @throws TypeError, InvalidInput
  PythonTeam(nb::object carrier, Conductor& conductor);

  [[nodiscard]] std::int32_t rank() const override { return rank_; }
  [[nodiscard]] std::int32_t ranks() const override { return ranks_; }
  /// @throws what the carrier raises, PeerLost (C++ or Python) among it; PeerLost for a rank that left the plan,
  ///         Cancelled when it was cancelled there; InvalidInput for what is no message of this plan
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override;

  /// First: lines of «name=value» that are equal in all ranks. @throws InvalidInput naming rank and option
  void require_same(const std::string& options);
  /// Last, with what all should have come to. A rank that is lost now costs the others nothing: they have the plan.
  /// @throws InternalError when ranks came to different things, Cancelled
  std::optional<Loss> finish(const std::string& result);
  /// Instead, when planning ended with `failure`: tells the others, if they do not know and can still be told.
  /// @returns who was lost, if that is what the failure is @throws what is no Exception: KeyboardInterrupt
  std::optional<Loss> leave(const std::exception_ptr& failure);

 private:
  enum class State : std::uint32_t { kGoing, kDone, kCancelled, kFailed };
  struct Part {
    State state;
    std::vector<std::byte> bytes;
  };

  std::vector<Part> exchange(State state, std::span<const std::byte> mine);
  std::vector<Part> parts_of(nb::handle answer, std::span<const std::byte> mine) const;
  Part part_of(std::span<const std::byte> message, std::size_t from) const;
  [[noreturn]] void refuse(const std::string& found) const;

  nb::object carrier_;
  Conductor& conductor_;
  std::int32_t rank_ = 0, ranks_ = 1;
  std::uint32_t calls_ = 0;
  bool open_ = true;  // everyone has come to the same call and goes on
};

}  // namespace routepack::python
