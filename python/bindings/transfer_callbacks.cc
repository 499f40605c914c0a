// SPDX-License-Identifier: Apache-2.0
#include "transfer_callbacks.h"

#include <utility>

#include "errors.h"
#include "routepack/error.h"

namespace routepack::python {
namespace {

template <class Body>
auto ask(const Body& body) {
  const nb::gil_scoped_acquire gil;
  try {
    return body();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    if (error.matches(PyExc_ConnectionError) && nb::hasattr(error.value(), "rank")) {
      throw PeerLost(nb::cast<std::int32_t>(error.value().attr("rank")), one_line(error));
    }
    throw InvalidInput(one_line(error));
  } catch (const nb::cast_error&) {
    throw InvalidInput("a method of the mover or the postbox returned a value of the wrong type");
  }
}

/// Dropping the last reference needs the GIL.
class Held {
 public:
  explicit Held(nb::object object) : object_(std::move(object)) {}
  ~Held() {
    const nb::gil_scoped_acquire gil;
    object_.reset();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  [[nodiscard]] const nb::object& get() const { return object_; }

 private:
  nb::object object_;
};

class PythonMover final : public StateMover {
 public:
  explicit PythonMover(nb::object mover) : held_(std::move(mover)) {}

  TrainerFacts facts() override {
    return ask([&] { return nb::cast<TrainerFacts>(mover().attr("facts")()); });
  }
  std::optional<TransferFailure> inspect(std::span<const LayerSchedule> layers) override {
    try {
      return ask([&]() -> std::optional<TransferFailure> {
        const nb::object found = mover().attr("inspect")(list(layers));
        if (found.is_none()) return std::nullopt;
        return nb::cast<TransferFailure>(found);
      });
    } catch (const InvalidInput& error) {
      return TransferFailure{TransferPhase::Prepare, -1, -1, -1, -1, error.what()};
    }
  }
  std::uint64_t equal_digest() override {
    return ask([&] { return nb::cast<std::uint64_t>(mover().attr("equal_digest")()); });
  }
  void set_canary(LayerId layer, std::int32_t local_slot, ExpertId expert) override {
    ask([&] { mover().attr("set_canary")(layer.value(), local_slot, expert.value()); });
  }
  std::array<std::int64_t, 2> canary(LayerId layer, std::int32_t local_slot) override {
    return ask([&] { return pair(mover().attr("canary")(layer.value(), local_slot)); });
  }
  void stage(std::span<const LayerSchedule> layers) override {
    ask([&] { mover().attr("stage")(list(layers)); });
  }
  void start(const LayerSchedule& layer, std::int32_t hop) override {
    ask([&] { mover().attr("start")(layer.layer.value(), hop); });
  }
  bool advance(bool& progressed) override {
    return ask([&] {
      const auto [over, moved] = nb::cast<std::pair<bool, bool>>(mover().attr("advance")());
      progressed |= moved;
      return over;
    });
  }
  [[nodiscard]] std::int32_t waiting_for() const override {
    return ask([&] { return nb::cast<std::int32_t>(mover().attr("waiting_for")()); });
  }
  std::uint64_t source_checksum(const LayerSchedule& layer, std::size_t copy) override {
    return ask([&] { return nb::cast<std::uint64_t>(mover().attr("source_checksum")(layer.layer.value(), copy)); });
  }
  std::uint64_t staged_checksum(const LayerSchedule& layer, std::size_t copy) override {
    return ask([&] { return nb::cast<std::uint64_t>(mover().attr("staged_checksum")(layer.layer.value(), copy)); });
  }
  std::array<std::int64_t, 2> staged_canary(const LayerSchedule& layer, std::size_t copy) override {
    return ask([&] { return pair(mover().attr("staged_canary")(layer.layer.value(), copy)); });
  }
  void commit(const LayerSchedule& layer, std::size_t copy, bool read_back) override {
    ask([&] { mover().attr("commit")(layer.layer.value(), copy, read_back); });
  }
  void release() override {
    ask([&] { mover().attr("release")(); });
  }

 private:
  [[nodiscard]] const nb::object& mover() const { return held_.get(); }
  /// Copies: the engine's are gone when the move is over.
  static nb::list list(std::span<const LayerSchedule> layers) {
    nb::list all;
    for (const LayerSchedule& layer : layers) all.append(nb::cast(layer));
    return all;
  }
  static std::array<std::int64_t, 2> pair(const nb::object& value) {
    const auto [layer, expert] = nb::cast<std::pair<std::int64_t, std::int64_t>>(value);
    return {layer, expert};
  }
  Held held_;
};

class PythonPostbox final : public Postbox {
 public:
  explicit PythonPostbox(nb::object postbox)
      : held_(std::move(postbox)),
        rank_(nb::cast<std::int32_t>(held_.get().attr("rank"))),
        ranks_(nb::cast<std::int32_t>(held_.get().attr("ranks"))) {}

  [[nodiscard]] std::int32_t rank() const override { return rank_; }
  [[nodiscard]] std::int32_t ranks() const override { return ranks_; }
  void post(std::int32_t to, std::span<const std::byte> bytes) override {
    ask([&] { held_.get().attr("post")(to, nb::bytes(bytes.data(), bytes.size())); });
  }
  std::optional<Note> note() override {
    return ask([&]() -> std::optional<Note> {
      const nb::object arrived = held_.get().attr("note")();
      if (arrived.is_none()) return std::nullopt;
      const auto [from, bytes] = nb::cast<std::pair<std::int32_t, nb::bytes>>(arrived);
      const auto* data = reinterpret_cast<const std::byte*>(bytes.c_str());
      return Note{from, std::vector<std::byte>(data, data + bytes.size())};
    });
  }

 private:
  Held held_;
  std::int32_t rank_, ranks_;
};

}  // namespace

std::unique_ptr<StateMover> make_python_mover(nb::object mover) {
  return std::make_unique<PythonMover>(std::move(mover));
}

std::unique_ptr<Postbox> make_python_postbox(nb::object postbox) {
  return std::make_unique<PythonPostbox>(std::move(postbox));
}

}  // namespace routepack::python
