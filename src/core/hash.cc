// SPDX-License-Identifier: Apache-2.0
#include "core/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace routepack {

struct Xxh3::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {}
Xxh3::~Xxh3() = default;

void Xxh3::bytes(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::string Xxh3::digest() const {
  return fmt::format("xxh3:{:016x}", XXH3_64bits_digest(state_->xxh));
}

}  // namespace routepack
