// SPDX-License-Identifier: Apache-2.0
// Windows in parts: a manifest names window files, one per rollout host, and no process needs to read them all.
#pragma once

#include <filesystem>
#include <span>

#include "routepack/communicator.h"
#include "routepack/window.h"

namespace routepack {

/// Writes a `routepack.manifest/1` file (docs/formats.md) that names window files, in this order. Every file is read
/// once. Paths are written relative to the manifest where that is possible.
/// Returns the window that it makes.
/// @throws as Window::load and Window::join; IoError; InvalidInput for a manifest among the parts, and for a path with
///         control characters or not in UTF-8
Window save_manifest(const std::filesystem::path& manifest, std::span<const std::filesystem::path> parts);

/// The window at `path`, by all members of a team together. Of a manifest each member reads some parts, and gets what
/// the others read but for the counts; no other file is read twice. Only member 0 needs the manifest itself; the parts
/// that it names relative to itself are looked for beside the same path in every member. A part is read by one of those
/// that find it, equal shares of the samples where there is a choice. A file that is no manifest is read by all members
/// whole.
/// @throws as Window::load, with the same message in all members; InvalidInput for a part that no member finds;
/// PeerLost
Window load_window(const std::filesystem::path& path, Communicator& team);

/// The windows of all members of a team one after another, in the order of their ranks: each has its own counts and
/// gets everything else of the others'. For members that counted the samples of their own host.
/// @throws as Window::join, with the same message in all members; PeerLost
Window share_window(const Window& mine, Communicator& team);

}  // namespace routepack
