// SPDX-License-Identifier: Apache-2.0
// What can go wrong. Bad input, files and peers are exceptions; «no layout exists» is an expected outcome and a value.
#pragma once

#include <stdexcept>
#include <string>

namespace routepack {

/// Root of everything the library throws on purpose. `what()` is one line: where (file, tensor, index), found, wanted.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Values that contradict each other or their own definition (Python: ValueError; exit status 2).
class InvalidInput : public Error {
 public:
  using Error::Error;
};

/// A file whose bytes are not what its format promises (Python: ValueError; exit status 2).
class FormatError : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

/// The system refused to open, map, read or write (Python: OSError; exit status 2).
class IoError : public Error {
 public:
  using Error::Error;
};

/// A broken invariant of our own: a bug, never the caller's fault (exit status 1).
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Well-formed input for which no layout exists, or none was found (exit status 3).
struct Infeasible {
  std::string reason;  ///< what excludes what, with indices and numbers
  std::string remedy;  ///< the smallest change that would help
};

}  // namespace routepack
