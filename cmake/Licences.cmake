# SPDX-License-Identifier: Apache-2.0
# The wheel holds other people's code, compiled in or as shared libraries: their licences travel with it.
foreach(package libcli11-dev libfmt-dev libhwy-dev librandom123-dev libtomlplusplus-dev libxxhash-dev nlohmann-json3-dev)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION routepack/licenses RENAME ${package}.txt OPTIONAL)
endforeach()
file(GLOB nanobind_licence ${nanobind_DIR}/../../nanobind-*.dist-info/licenses/LICENSE)
if(nanobind_licence)
  install(FILES ${nanobind_licence} DESTINATION routepack/licenses RENAME nanobind.txt)
endif()
