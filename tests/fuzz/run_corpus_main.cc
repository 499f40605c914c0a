// SPDX-License-Identifier: Apache-2.0
// Feeds every file of the given directories once to a fuzz target, in builds without libFuzzer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::filesystem::path> seeds_of(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_regular_file()) seeds.push_back(entry.path());
  }
  if (seeds.empty()) throw std::runtime_error(directory.string() + ": no seeds");
  std::sort(seeds.begin(), seeds.end());
  return seeds;
}

void feed(const std::filesystem::path& seed) {
  std::ifstream file(seed, std::ios::binary);
  if (!file) throw std::runtime_error(seed.string() + ": cannot be read");
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // A copy of exactly the right size: reading past its end is then an error that the sanitizer sees.
  const std::vector<std::uint8_t> data(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(data.data(), data.size());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::size_t fed = 0;
    for (const std::string& directory : std::vector<std::string>(argv + 1, argv + argc)) {
      for (const auto& seed : seeds_of(directory)) {
        // Before the call: when the target crashes, this line says on what.
        std::cout << seed.string() << std::endl;
        feed(seed);
        ++fed;
      }
    }
    if (fed == 0) throw std::runtime_error("usage: <target> CORPUS_DIRECTORY...");
    std::cout << fed << " seeds\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
