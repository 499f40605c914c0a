# SPDX-License-Identifier: Apache-2.0
# Compiler flags of every target of ours, as an interface target.
add_library(routepack_flags INTERFACE)
target_compile_features(routepack_flags INTERFACE cxx_std_20)
# Two builds, and two implementations, must agree to the last bit: no fused multiply-add (docs/mathematics.md).
target_compile_options(routepack_flags INTERFACE -ffp-contract=off)
target_compile_options(routepack_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
                                                 -Wold-style-cast -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Fields left out of {.name = …} keep the defaults that the struct declares; that is what they are for.
  target_compile_options(routepack_flags INTERFACE -Wno-missing-designated-field-initializers)
  # std::stable_sort of libstdc++ 12 calls a function of its own that it deprecates.
  target_compile_options(routepack_flags INTERFACE -Wno-deprecated-declarations)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms of g++ 12 inside libstdc++ (std::string::insert, std::vector) when it optimises.
  target_compile_options(routepack_flags INTERFACE -Wno-restrict -Wno-free-nonheap-object -Wno-stringop-overflow
                                                   -Wno-array-bounds)
endif()
option(ROUTEPACK_WERROR "Treat warnings as errors" OFF)
if(ROUTEPACK_WERROR)
  target_compile_options(routepack_flags INTERFACE -Werror)
endif()
if(ROUTEPACK_HEAVY_ASSERTS)
  target_compile_definitions(routepack_flags INTERFACE ROUTEPACK_HEAVY_ASSERTS _GLIBCXX_ASSERTIONS)
endif()
if(ROUTEPACK_SANITIZE)
  target_compile_options(routepack_flags INTERFACE -fsanitize=${ROUTEPACK_SANITIZE} -fno-omit-frame-pointer
                                                   -fno-sanitize-recover=all)
  target_link_options(routepack_flags INTERFACE -fsanitize=${ROUTEPACK_SANITIZE})
endif()
