# SPDX-License-Identifier: Apache-2.0
# The MPI libraries that are here. Both may be: each gets its own library target and executables, since a program can
# hold one MPI only. Sets routepack_mpi_flavours, and offers routepack_mpi_executable().
if(PROJECT_IS_TOP_LEVEL AND NOT ROUTEPACK_PYTHON)
  set(ROUTEPACK_MPI AUTO CACHE STRING "Transport on MPI: AUTO (what pkg-config finds), ON (fail if nothing), OFF")
else()
  set(ROUTEPACK_MPI OFF CACHE STRING "Transport on MPI: AUTO (what pkg-config finds), ON (fail if nothing), OFF")
endif()
set_property(CACHE ROUTEPACK_MPI PROPERTY STRINGS AUTO ON OFF)

# Debian's names. Elsewhere: point PKG_CONFIG_PATH at the library's own .pc files.
set(mpi_pkg_openmpi ompi-c)
set(mpi_pkg_mpich mpich)
set(mpi_deb_openmpi "libopenmpi-dev openmpi-bin")
set(mpi_deb_mpich "libmpich-dev mpich")

set(routepack_mpi_flavours)
if(ROUTEPACK_MPI)
  set(mpi_words)
  foreach(flavour openmpi mpich)
    pkg_check_modules(mpi_${flavour} QUIET IMPORTED_TARGET ${mpi_pkg_${flavour}})
    if(mpi_${flavour}_FOUND)
      list(APPEND routepack_mpi_flavours ${flavour})
      list(APPEND mpi_words "${flavour} ${mpi_${flavour}_VERSION}")
    else()
      list(APPEND mpi_words "no ${flavour} (${mpi_deb_${flavour}})")
    endif()
  endforeach()
  list(JOIN mpi_words ", " mpi_words)
  message(STATUS "MPI transport: ${mpi_words}")
  if(NOT routepack_mpi_flavours AND NOT ROUTEPACK_MPI STREQUAL "AUTO")
    message(FATAL_ERROR "ROUTEPACK_MPI=${ROUTEPACK_MPI}: pkg-config finds neither ${mpi_pkg_openmpi} nor ${mpi_pkg_mpich}")
  endif()
else()
  message(STATUS "MPI transport: left out (ROUTEPACK_MPI=${ROUTEPACK_MPI})")
endif()

foreach(flavour ${routepack_mpi_flavours})
  file(GLOB mpi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/mpi/*.cc)
  add_library(routepack_${flavour} STATIC ${mpi_sources})
  target_include_directories(routepack_${flavour} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(routepack_${flavour} PUBLIC routepack::routepack PRIVATE PkgConfig::mpi_${flavour} fmt::fmt-header-only)
endforeach()

# An executable for one MPI, in build/mpi/bin whatever the preset.
function(routepack_mpi_executable target flavour output)
  add_executable(${target} ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output}
                                             RUNTIME_OUTPUT_DIRECTORY ${PROJECT_SOURCE_DIR}/build/mpi/bin)
  target_link_libraries(${target} PRIVATE routepack_${flavour} fmt::fmt-header-only nlohmann_json::nlohmann_json)
endfunction()
