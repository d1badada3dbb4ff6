# Compiler settings and the functions every CMakeLists.txt of the tree uses:
#   kvferry_library(NAME SOURCES... DEPS...)   one static library per folder
#   kvferry_library_with_lab(... INCLUDE)      and its build with guards that can be missing; INCLUDE: one
#                                              more folder for it and its users to include from
#   kvferry_test(NAME SOURCES... DEPS... LABEL unit|conformance|e2e)
#   kvferry_program(NAME SOURCE DEPS...)       a program of the product, in the build folder's root
#   kvferry_alone(FILES...)                    files that are not joined with others to one unit

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

set(KVFERRY_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined")

find_program(KVFERRY_CCACHE ccache)
if(KVFERRY_CCACHE)
  # Hits in a second clone need the base folder, no hashed folder and the two sloppiness flags.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${KVFERRY_CCACHE})
endif()

# Several files of a target are compiled as one unit: a build from nothing takes half the time. Names of
# unnamed namespaces must then differ within a target. Turn it off where single files are changed often.
option(KVFERRY_UNITY "Compile several files of a target as one unit" ON)
set(CMAKE_UNITY_BUILD ${KVFERRY_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

# Everywhere alike, executables included: the precompiled header is shared by all targets. Nobody puts
# functions of his own in the place of ours at load time, so calls within a unit may be inlined.
add_compile_options(-fPIC -fno-semantic-interposition)
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                    -Wimplicit-fallthrough -Werror -fpch-preprocess)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  # -g1 keeps line numbers in crash reports and costs little.
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
else()
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
endif()
if(KVFERRY_SANITIZE MATCHES "thread")
  set(KVFERRY_SANITIZE_LIGHT thread)
  # ThreadSanitizer does not know fences; without them Asio's queues are ordered by their mutexes.
  add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/.cache/libzmq-tsan/lib/libzmq.a)
    message(FATAL_ERROR "ThreadSanitizer needs a libzmq that was built with it, else it reports "
                        "races that are none. Run tools/setup/tsan_libzmq.py, or make tsan.")
  endif()
else()
  set(KVFERRY_SANITIZE_LIGHT address)
endif()
if(KVFERRY_SANITIZE)
  add_compile_options(-fno-omit-frame-pointer -fno-sanitize-recover=all
                      $<$<NOT:$<BOOL:$<TARGET_PROPERTY:KVFERRY_NO_UBSAN>>>:-fsanitize=${KVFERRY_SANITIZE}>
                      $<$<BOOL:$<TARGET_PROPERTY:KVFERRY_NO_UBSAN>>:-fsanitize=${KVFERRY_SANITIZE_LIGHT}>
                      # gcc 12 reports false positives of these two under sanitizers.
                      -Wno-maybe-uninitialized -Wno-stringop-overflow)
  add_link_options(-fsanitize=${KVFERRY_SANITIZE})
endif()

find_program(KVFERRY_MOLD mold)
if(KVFERRY_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)

# The standard headers that nearly every unit includes, precompiled once and reused by all targets.
add_library(kvferry_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
target_precompile_headers(kvferry_pch PRIVATE ${CMAKE_SOURCE_DIR}/cmake/pch.h)

function(kvferry_target_defaults NAME)
  target_include_directories(${NAME} PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  if(NOT ARG_NO_UBSAN)
    target_precompile_headers(${NAME} REUSE_FROM kvferry_pch)
  else()
    set_target_properties(${NAME} PROPERTIES KVFERRY_NO_UBSAN ON)
  endif()
endfunction()

function(kvferry_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# NO_UBSAN: for folders of heavy headers, whose compile time the undefined-behaviour sanitizer triples.
function(kvferry_library NAME)
  cmake_parse_arguments(ARG "NO_UBSAN" "" "SOURCES;DEPS" ${ARGN})
  add_library(${NAME} STATIC ${ARG_SOURCES})
  kvferry_target_defaults(${NAME})
  target_link_libraries(${NAME} PUBLIC ${ARG_DEPS})
endfunction()

# The same, and NAME_lab beside it: the same sources built with KVFERRY_LAB, for kvferry-lab, which runs
# them with guards missing. It is linked to the lab builds of its DEPS where there are any. Under
# sanitizers, which look for errors of memory and threads and not for guards, one build stands for
# both: the lines of the product, and the questions which guards are missing.
function(kvferry_library_with_lab NAME)
  cmake_parse_arguments(ARG "" "INCLUDE" "SOURCES;DEPS" ${ARGN})
  kvferry_library(${NAME} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
  target_include_directories(${NAME} PUBLIC ${ARG_INCLUDE})
  if(KVFERRY_SANITIZE)
    target_compile_definitions(${NAME} PUBLIC KVFERRY_LAB)
    add_library(${NAME}_lab ALIAS ${NAME})
    return()
  endif()
  set(LAB_DEPS)
  foreach(DEP ${ARG_DEPS})
    if(TARGET ${DEP}_lab)
      list(APPEND LAB_DEPS ${DEP}_lab)
    else()
      list(APPEND LAB_DEPS ${DEP})
    endif()
  endforeach()
  kvferry_library(${NAME}_lab SOURCES ${ARG_SOURCES} DEPS ${LAB_DEPS})
  target_include_directories(${NAME}_lab PUBLIC ${ARG_INCLUDE})
  target_compile_definitions(${NAME}_lab PUBLIC KVFERRY_LAB)
endfunction()

# A program brings its own allocator; the library leaves that to its host. Sanitizers bring theirs.
if(NOT KVFERRY_SANITIZE AND NOT KVFERRY_PYTHON_MODULE)
  find_package(mimalloc REQUIRED)
endif()

function(kvferry_program NAME SOURCE)
  add_executable(${NAME} ${SOURCE} ${PROJECT_SOURCE_DIR}/src/cli/allocator.cc)
  target_compile_definitions(${NAME} PRIVATE KVFERRY_VERSION="${PROJECT_VERSION}")
  if(NOT KVFERRY_SANITIZE)
    target_compile_definitions(${NAME} PRIVATE KVFERRY_MIMALLOC)
    # First, and though nothing names it: it takes the place of malloc and new for all that follows.
    target_link_libraries(${NAME} PRIVATE -Wl,--push-state,--no-as-needed mimalloc -Wl,--pop-state)
  endif()
  target_link_libraries(${NAME} PRIVATE ${ARGN})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

if(NOT KVFERRY_PYTHON_MODULE)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# LABEL groups tests for ctest -L: unit, conformance, e2e.
function(kvferry_test NAME)
  cmake_parse_arguments(ARG "NO_UBSAN" "LABEL" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  kvferry_target_defaults(${NAME})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${NAME} DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT 120)
endfunction()
