// SPDX-License-Identifier: Apache-2.0
// What the operating system may do to the process, turned into one line on stderr and an exit status.
#pragma once

namespace routepack::cli {

/// Once, first thing in main(). Standard descriptors that the caller closed are opened so that no output file lands on
/// them; a file size limit becomes an error of write(); a mapped file that shrinks while it is read, and memory that
/// ends inside a destructor, end the process with a line instead of a signal.
void prepare_process();

/// Makes the first Ctrl-C (or SIGTERM, SIGHUP) set a flag instead of ending the process; the second ends it. For
/// subcommands that ask interrupted() and write files.
void catch_interrupts();
bool interrupted();

}  // namespace routepack::cli
