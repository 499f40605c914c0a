// SPDX-License-Identifier: Apache-2.0
#include "team.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/bytes.h"
#include "errors.h"
#include "routepack/error.h"
#include "routepack/plan.h"
#include "routepack/transport.h"
#include "routepack/window_parts.h"

namespace routepack::python {
namespace {

constexpr std::uint32_t kMagic = 0x6d745052;  // «RPtm»
constexpr std::size_t kHeadBytes = 3 * sizeof(std::uint32_t);

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::int32_t number_of(const nb::object& carrier, const char* name) {
  std::int32_t value = 0;
  if (!nb::hasattr(carrier, name) || !nb::try_cast(nb::object(carrier.attr(name)), value, false)) {
    throw nb::type_error(
        fmt::format("team: found {}, wanted a Communicator with an integer {}", nb::repr(carrier).c_str(), name)
            .c_str());
  }
  return value;
}

/// The options in which two ranks differ first; `theirs` and `wanted` differ.
std::string first_difference(std::string_view theirs, std::string_view wanted) {
  const auto line = [](std::string_view& text) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view first = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return first;
  };
  while (true) {
    const std::string_view found = line(theirs), asked = line(wanted);
    if (found == asked && !found.empty()) continue;
    const auto name = found.substr(0, found.find('='));
    if (found.empty() || name != asked.substr(0, asked.find('='))) return "other options than those of rank 0";
    return fmt::format("{} {}, wanted {} as in rank 0", name, found.substr(name.size() + 1),
                       asked.substr(name.size() + 1));
  }
}

/// A carrier for calls that are made outside a plan, in the calling thread.
class Carrier final : public Communicator {
 public:
  explicit Carrier(nb::object carrier)
      : carrier_(std::move(carrier)), rank_(number_of(carrier_, "rank")), ranks_(number_of(carrier_, "ranks")) {
    if (rank_ < 0 || rank_ >= ranks_) throw InvalidInput(fmt::format("team: found rank {} of {}", rank_, ranks_));
  }
  [[nodiscard]] std::int32_t rank() const override { return rank_; }
  [[nodiscard]] std::int32_t ranks() const override { return ranks_; }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
    const nb::gil_scoped_acquire gil;
    const nb::object answer = carrier_.attr("all_gather")(nb::bytes(mine.data(), mine.size()));
    std::vector<std::vector<std::byte>> all;
    for (const nb::handle item : answer) {
      const auto bytes = nb::cast<nb::bytes>(item);
      const auto* data = static_cast<const std::byte*>(bytes.data());
      all.emplace_back(data, data + bytes.size());
    }
    if (all.size() != static_cast<std::size_t>(ranks_)) {
      throw InvalidInput(
          fmt::format("team.all_gather: found {} items, wanted one of each of {} ranks", all.size(), ranks_));
    }
    return all;
  }

 private:
  nb::object carrier_;
  std::int32_t rank_, ranks_;
};

}  // namespace

void bind_team(nb::module_& module) {
  module.def(
      "load_window",
      [](const std::filesystem::path& path, nb::object team) {
        Carrier carrier(std::move(team));
        const nb::gil_scoped_release unlocked;
        return load_window(path, carrier);
      },
      nb::arg("path"), nb::arg("team"),
      nb::sig("def load_window(path: str | os.PathLike, team: routepack.team.communicator.Communicator) -> Window"),
      "The window at path, by all members of a team together. Of a manifest each reads some parts and gets all but "
      "the\n"
      "counts of the others; another file is read by all. Only rank 0 needs the manifest, and a part only somebody.\n\n"
      ":raises InvalidInput: the same in all members, also for a part that nobody finds");
  module.def(
      "share_window",
      [](const Window& window, nb::object team) {
        Carrier carrier(std::move(team));
        const nb::gil_scoped_release unlocked;
        return share_window(window, carrier);
      },
      nb::arg("window"), nb::arg("team"),
      nb::sig("def share_window(window: Window, team: routepack.team.communicator.Communicator) -> Window"),
      "The windows of all members one after another, by rank. Each has its own counts; all know everything else.\n\n"
      ":raises InvalidInput: the same in all members, for windows that do not go together");
}

PythonTeam::PythonTeam(nb::object carrier, Conductor& conductor)
    : carrier_(std::move(carrier)),
      conductor_(conductor),
      rank_(number_of(carrier_, "rank")),
      ranks_(number_of(carrier_, "ranks")) {
  if (rank_ < 0 || rank_ >= ranks_) throw InvalidInput(fmt::format("team: found rank {} of {}", rank_, ranks_));
}

void PythonTeam::refuse(const std::string& found) const {
  throw InvalidInput(
      fmt::format("team.all_gather: found {}, wanted a list of {} bytes objects, what each rank gave", found, ranks_));
}

std::vector<PythonTeam::Part> PythonTeam::parts_of(nb::handle answer, std::span<const std::byte> mine) const {
  if (!nb::isinstance<nb::list>(answer) && !nb::isinstance<nb::tuple>(answer)) {
    refuse(nb::repr(answer.type()).c_str());
  }
  const auto count = nb::len(answer);
  if (count != static_cast<std::size_t>(ranks_)) refuse(fmt::format("{} items", count));
  std::vector<Part> parts;
  for (std::size_t r = 0; r < count; ++r) {
    const nb::object item = answer[r];
    Py_buffer view;
    if (PyObject_GetBuffer(item.ptr(), &view, PyBUF_SIMPLE) != 0) {
      PyErr_Clear();
      refuse(fmt::format("{} in place of rank {}", nb::repr(item.type()).c_str(), r));
    }
    const std::span bytes(static_cast<const std::byte*>(view.buf), static_cast<std::size_t>(view.len));
    try {
      if (r == static_cast<std::size_t>(rank_) && !std::ranges::equal(bytes, mine)) {
        refuse(fmt::format("other bytes in place of rank {} than it gave", r));
      }
      parts.push_back(part_of(bytes, r));
    } catch (...) {
      PyBuffer_Release(&view);
      throw;
    }
    PyBuffer_Release(&view);
  }
  return parts;
}

PythonTeam::Part PythonTeam::part_of(std::span<const std::byte> message, std::size_t from) const {
  const auto foreign = [&](const std::string& what) {
    throw InvalidInput(
        fmt::format("team: found {} from rank {}: a team is for one plan at a time, and for nothing else", what, from));
  };
  ByteReader reader(message);
  if (message.size() < kHeadBytes || reader.get<std::uint32_t>() != kMagic) foreign("what is no message of a plan");
  const auto call = reader.get<std::uint32_t>();
  const auto state = reader.get<std::uint32_t>();
  if (call != calls_ || state > static_cast<std::uint32_t>(State::kFailed)) {
    foreign(fmt::format("message {} (wanted {})", call, calls_));
  }
  const auto bytes = message.subspan(kHeadBytes);
  return {static_cast<State>(state), {bytes.begin(), bytes.end()}};
}

std::vector<PythonTeam::Part> PythonTeam::exchange(State state, std::span<const std::byte> mine) {
  std::vector<std::byte> message;
  message.reserve(kHeadBytes + mine.size());
  put(message, kMagic);
  put(message, ++calls_);
  put(message, static_cast<std::uint32_t>(state));
  message.insert(message.end(), mine.begin(), mine.end());
  open_ = false;  // whoever fails in here cannot tell anybody: the others may be at this call or at the next
  std::vector<Part> parts;
  conductor_.in_python([&] {
    const nb::object answer = carrier_.attr("all_gather")(nb::bytes(message.data(), message.size()));
    parts = parts_of(answer, message);
  });
  return parts;
}

std::vector<std::vector<std::byte>> PythonTeam::all_gather(std::span<const std::byte> mine) {
  std::vector<std::vector<std::byte>> all;
  std::vector<Part> parts = exchange(State::kGoing, mine);
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const auto rank = static_cast<std::int32_t>(r);
    const std::string_view why = text_of(parts[r].bytes);
    switch (parts[r].state) {
      case State::kGoing:
        break;
      case State::kDone:
        throw InternalError(fmt::format("rank {} is done with a plan that others still make", r));
      case State::kCancelled:
        throw Cancelled(fmt::format("rank {}: {}", r, why));
      case State::kFailed:
        throw PeerLost(rank, fmt::format("rank {} is lost: it left the plan: {}", r, why));
    }
    all.push_back(std::move(parts[r].bytes));
  }
  open_ = true;
  return all;
}

void PythonTeam::require_same(const std::string& options) {
  const auto all = all_gather(std::as_bytes(std::span(options)));
  for (std::size_t r = 1; r < all.size(); ++r) {
    const std::string_view theirs = text_of(all[r]), wanted = text_of(all.front());
    if (theirs != wanted) {
      throw InvalidInput(fmt::format("team: rank {}: found {}", r, first_difference(theirs, wanted)));
    }
  }
}

std::optional<PythonTeam::Loss> PythonTeam::finish(const std::string& result) {
  std::vector<Part> parts;
  try {
    parts = exchange(State::kDone, std::as_bytes(std::span(result)));
  } catch (...) {
    const std::exception_ptr failure = std::current_exception();
    if (auto loss = leave(failure)) return loss;
    throw;
  }
  std::optional<Loss> loss;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const std::string_view theirs = text_of(parts[r].bytes);
    switch (parts[r].state) {
      case State::kDone:
        if (theirs != result) throw InternalError(fmt::format("rank {} came to another plan than rank {}", r, rank_));
        break;
      case State::kGoing:
        throw InternalError(fmt::format("rank {} still makes a plan that others have", r));
      case State::kCancelled:
        throw Cancelled(fmt::format("rank {}: {}", r, theirs));
      case State::kFailed:
        if (!loss) loss = Loss{fmt::format("rank {} is lost: it left the plan: {}", r, theirs)};
        break;
    }
  }
  return loss;
}

std::optional<PythonTeam::Loss> PythonTeam::leave(const std::exception_ptr& failure) {
  State state = State::kFailed;
  std::string why;
  std::optional<Loss> loss;
  conductor_.in_python([&] {
    const std::exception_ptr thrown = conductor_.thrown();
    try {
      std::rethrow_exception(thrown ? thrown : failure);
    } catch (const nb::python_error& error) {
      why = one_line(error);
      const nb::object lost = nb::module_::import_("routepack._errors").attr("PeerLost");
      if (!thrown && error.matches(lost)) loss = Loss{nb::str(error.value()).c_str()};
    } catch (const PeerLost& error) {
      loss = Loss{error.what()};
    } catch (const Cancelled& error) {
      state = State::kCancelled;
      why = error.what();
    } catch (const std::exception& error) {
      why = error.what();
    }
  });
  if (!open_) return loss;
  try {
    exchange(state, std::as_bytes(std::span(why)));
  } catch (const nb::python_error& error) {
    const nb::gil_scoped_acquire gil;
    if (!error.matches(PyExc_Exception)) throw;
  } catch (const std::exception&) {
    // The others will notice by themselves; `failure` is what matters here.
  }
  return loss;
}

}  // namespace routepack::python
