// SPDX-License-Identifier: Apache-2.0
// A window in parts, read by several processes: each reads its share and tells the others all but the counts.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/bytes.h"
#include "core/file.h"
#include "core/in_parallel.h"
#include "routepack/error.h"
#include "routepack/window_parts.h"
#include "window/manifest.h"
#include "window/safetensors.h"

namespace routepack {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

enum class Kind : std::uint8_t { Format, Input, Io, Other };

/// What one member tells the others, and what becomes of it when it fails: all throw the same.
template <class Work>
std::vector<Bytes> tell_all(Communicator& team, const Work& work) {
  Bytes mine;
  const auto fail = [&](Kind kind, const std::exception& error) {
    mine.clear();
    put(mine, std::uint8_t{1});
    put(mine, kind);
    put_list(mine, std::span<const char>(std::string_view(error.what())));
  };
  try {
    put(mine, std::uint8_t{0});
    work(mine);
  } catch (const FormatError& error) {
    fail(Kind::Format, error);
  } catch (const InvalidInput& error) {
    fail(Kind::Input, error);
  } catch (const IoError& error) {
    fail(Kind::Io, error);
  } catch (const std::exception& error) {
    fail(Kind::Other, error);
  }
  auto all = team.all_gather(mine);
  for (std::size_t r = 0; r < all.size(); ++r) {
    ByteReader reader(all[r]);
    if (reader.get<std::uint8_t>() == 0) continue;
    const Kind kind = reader.get<Kind>();
    const auto text = reader.get_list<char>();
    const std::string message = fmt::format("rank {}: {}", r, std::string_view(text.data(), text.size()));
    if (kind == Kind::Format) throw FormatError(message);
    if (kind == Kind::Input) throw InvalidInput(message);
    if (kind == Kind::Io) throw IoError(message);
    throw Error(message);
  }
  return all;
}

ByteReader reader_of(const Bytes& told) {
  ByteReader reader(told);
  (void)reader.get<std::uint8_t>();
  return reader;
}

/// The tensors of a part that another member read.
struct Received {
  std::vector<std::int32_t> lengths, recorded, groups, atomic;
  std::vector<std::uint32_t> pad_counts;
  std::vector<std::int64_t> ids;
};

void put_part(Bytes& out, const Window& window) {
  const WindowArrays& arrays = window.arrays();
  for (const std::int64_t size : {arrays.samples, arrays.layers, arrays.experts, arrays.top_k}) put(out, size);
  put(out, arrays.kind);
  put_list(out, arrays.lengths);
  put_list(out, arrays.recorded);
  put_list(out, arrays.groups);
  put_list(out, arrays.atomic);
  put_list(out, arrays.pad_counts);
  put_list(out, arrays.ids);
  put_list(out, std::span<const char>(arrays.model));
  put_list(out, std::span<const std::int64_t>(arrays.layer_numbers));
  put_list(out, std::span<const char>(window.fingerprint()));
}

std::string get_text(ByteReader& reader) {
  const auto text = reader.get_list<char>();
  return {text.data(), text.size()};
}

Window get_part(ByteReader& reader, const std::string& where) {
  WindowArrays arrays;
  for (std::int64_t* size : {&arrays.samples, &arrays.layers, &arrays.experts, &arrays.top_k}) {
    *size = reader.get<std::int64_t>();
  }
  arrays.kind = reader.get<WindowKind>();
  const auto received = std::make_shared<Received>();
  const auto take = [&]<class T>(std::vector<T>& values, std::span<const T>& view) {
    values = reader.get_list<T>();
    view = values;
  };
  take(received->lengths, arrays.lengths);
  take(received->recorded, arrays.recorded);
  take(received->groups, arrays.groups);
  take(received->atomic, arrays.atomic);
  take(received->pad_counts, arrays.pad_counts);
  take(received->ids, arrays.ids);
  arrays.model = get_text(reader);
  arrays.layer_numbers = reader.get_list<std::int64_t>();
  std::string fingerprint = get_text(reader);
  return Window::without_counts(std::move(arrays), received, std::move(fingerprint), where);
}

/// Which member reads which part: the one whose equal share of the samples the part begins in, or, when that one does
/// not find it, the one with the least to read among those that do.
std::vector<std::size_t> deal(const std::vector<ManifestPart>& parts, const std::vector<Bytes>& found,
                              const std::string& where) {
  const std::size_t members = found.size();
  std::int64_t samples = 0;
  for (const ManifestPart& part : parts) samples += part.samples;
  std::vector<std::int64_t> load(members);
  std::vector<std::size_t> reader_of_part;
  std::int64_t before = 0;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const auto finds = [&](std::size_t r) { return found[r][k + 1] != std::byte{0}; };  // behind the state
    std::size_t reader = static_cast<std::size_t>(before) * members / static_cast<std::size_t>(samples);
    if (!finds(reader)) {
      std::optional<std::size_t> best;
      for (std::size_t r = 0; r < members; ++r) {
        if (finds(r) && (!best || load[r] < load[*best])) best = r;
      }
      if (!best) {
        throw InvalidInput(fmt::format("{}: parts[{}]: path: found {} on none of the {} ranks, wanted it on one", where,
                                       k, printable_name(parts[k].path), members));
      }
      reader = *best;
    }
    load[reader] += parts[k].samples;
    before += parts[k].samples;
    reader_of_part.push_back(reader);
  }
  return reader_of_part;
}

}  // namespace

Window load_window(const fs::path& path, Communicator& team) {
  const auto me = static_cast<std::size_t>(team.rank());
  const auto texts = tell_all(team, [&](Bytes& mine) {
    if (me != 0) return;
    const auto file = MappedFile::open(path);
    const bool manifest = looks_like_a_manifest(file->bytes());
    put(mine, manifest);
    if (manifest) put_list(mine, file->bytes());
  });
  ByteReader first = reader_of(texts.front());
  if (!first.get<bool>()) {
    std::optional<Window> window;
    (void)tell_all(team, [&](Bytes&) { window = Window::load(path); });
    return *std::move(window);
  }
  const auto parts = parse_manifest(get_text(first), path.string());

  const auto found = tell_all(team, [&](Bytes& mine) {
    for (const ManifestPart& part : parts) {
      std::error_code ignored;
      put(mine, fs::is_regular_file(path_of_part(path, part), ignored));
    }
  });
  const auto dealt = deal(parts, found, path.string());

  std::vector<std::optional<Window>> windows(parts.size());
  std::vector<std::size_t> mine_to_read;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (dealt[k] == me) mine_to_read.push_back(k);
  }
  const auto told = tell_all(team, [&](Bytes& mine) {
    const std::size_t threads =
        std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, std::max<std::size_t>(1, mine_to_read.size()));
    in_parallel(static_cast<std::int64_t>(mine_to_read.size()), threads, [&](std::int64_t item, std::size_t) {
      const std::size_t k = mine_to_read[static_cast<std::size_t>(item)];
      windows[k] = load_part(path, parts[k]);
    });
    for (const std::size_t k : mine_to_read) put_part(mine, *windows[k]);
  });

  std::vector<std::string> names;
  std::vector<ByteReader> readers;
  for (const Bytes& bytes : told) readers.push_back(reader_of(bytes));
  for (std::size_t k = 0; k < parts.size(); ++k) {
    names.push_back(path_of_part(path, parts[k]).string());
    if (dealt[k] != me) windows[k] = get_part(readers[dealt[k]], names.back());
  }
  std::vector<Window> all;
  for (auto& window : windows) all.push_back(*std::move(window));
  // A member that read all parts still has to tell the others what they lack.
  return Window::join(std::move(all), names, team.ranks() > 1);
}

Window share_window(const Window& mine, Communicator& team) {
  std::vector<Window> own;
  const auto told = tell_all(team, [&](Bytes& out) {
    if (!mine.whole()) throw InvalidInput("window: found counts in another process, wanted a window of one's own");
    for (const Window& part : mine.parts()) own.push_back(part.with_fingerprint());
    put(out, own.size());
    for (const Window& part : own) put_part(out, part);
  });
  std::vector<Window> all;
  std::vector<std::string> names;
  for (std::size_t r = 0; r < told.size(); ++r) {
    ByteReader reader = reader_of(told[r]);
    const auto parts = reader.get<std::size_t>();
    for (std::size_t k = 0; k < parts; ++k) {
      names.push_back(fmt::format("window of rank {}", r));
      all.push_back(r == static_cast<std::size_t>(team.rank()) ? own[k] : get_part(reader, names.back()));
    }
  }
  return Window::join(std::move(all), names, team.ranks() > 1);
}

}  // namespace routepack
