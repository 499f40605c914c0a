// SPDX-License-Identifier: Apache-2.0
#include "exec/team.h"

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "routepack/error.h"

namespace routepack {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kWell = 0, kOver = 1, kFailed = 2;

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown error";
  }
}

}  // namespace

bool Team::share(std::size_t count, const SharedWork& work, const Deadline& deadline) {
  const auto ranks = static_cast<std::size_t>(link_.ranks());
  const auto me = static_cast<std::size_t>(link_.rank());
  const auto first = [&](std::size_t rank) { return count * rank / ranks; };
  const std::size_t begin = first(me), end = first(me + 1);
  std::exception_ptr failure;
  try {
    local_.for_each(end - begin, [&](std::size_t i) { work.body(begin + i); });
  } catch (...) {
    failure = std::current_exception();  // the others wait for what this process has to say
  }

  // A state, then each piece with its length in front; or the message of a failure.
  Bytes mine;
  const std::uint64_t state = failure ? kFailed : deadline.over() ? kOver : kWell;
  put(mine, state);
  if (failure) put_list(mine, std::span<const char>(message_of(failure)));
  for (std::size_t i = begin; i < end && !failure; ++i) {
    Bytes piece;
    work.give(i, piece);
    put_list(mine, std::span<const std::byte>(piece));
  }
  const auto all = link_.all_gather(mine);
  if (failure) std::rethrow_exception(failure);

  bool over = false;
  std::vector<std::span<const std::byte>> pieces(count);
  for (std::size_t r = 0; r < ranks; ++r) {
    ByteReader reader(all[r]);
    const auto theirs = reader.get<std::uint64_t>();
    if (theirs == kFailed) {
      const auto text = reader.get_list<char>();
      throw Error(fmt::format("rank {}: {}", r, std::string_view(text.data(), text.size())));
    }
    over = over || theirs == kOver;
    for (std::size_t i = first(r); i < first(r + 1); ++i) pieces[i] = reader.take(reader.get<std::uint64_t>());
  }
  const std::size_t others = count - (end - begin);
  local_.for_each(others, [&](std::size_t k) {
    const std::size_t i = k < begin ? k : k + (end - begin);
    work.take(i, pieces[i]);
  });
  return over;
}

bool Team::over(const Deadline& deadline) {
  const std::byte mine{static_cast<unsigned char>(deadline.over() ? 1 : 0)};
  bool over = false;
  for (const Bytes& theirs : link_.all_gather(std::span(&mine, 1))) over = over || theirs.at(0) != std::byte{0};
  return over;
}

double Team::agree(double mine) {
  Bytes bytes;
  put(bytes, mine);
  const auto all = link_.all_gather(bytes);
  return ByteReader(all.front()).get<double>();
}

}  // namespace routepack
