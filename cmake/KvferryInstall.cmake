# What `cmake --install` gives to C++ users: the public headers, one static archive of the library's
# folders, a package for find_package(kvferry) with the target kvferry::kvferry, and kvferry.pc.
# One archive instead of eight: their order on a link line is nobody's concern then.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# The folders below found these for themselves; their targets are known there only.
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(PkgConfig REQUIRED)
find_package(prometheus-cpp REQUIRED COMPONENTS core)
find_package(spdlog REQUIRED)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)

set(KVFERRY_ARCHIVE_FOLDERS kvferry_base kvferry_wire kvferry_layout kvferry_core kvferry_data_plane
    kvferry_http kvferry_net kvferry_runtime)
set(KVFERRY_OBJECTS)
foreach(FOLDER ${KVFERRY_ARCHIVE_FOLDERS})
  list(APPEND KVFERRY_OBJECTS $<TARGET_OBJECTS:${FOLDER}>)
endforeach()
add_library(kvferry_archive STATIC ${KVFERRY_OBJECTS})
set_target_properties(kvferry_archive PROPERTIES
  OUTPUT_NAME kvferry EXPORT_NAME kvferry LINKER_LANGUAGE CXX
  ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_compile_features(kvferry_archive INTERFACE cxx_std_20)
target_include_directories(kvferry_archive INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# As the folders' own, which are not installed.
target_link_libraries(kvferry_archive INTERFACE
  fmt::fmt spdlog::spdlog prometheus-cpp::core Boost::json Threads::Threads
  PkgConfig::ZMQ PkgConfig::SODIUM PkgConfig::XXHASH)

set(KVFERRY_PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/kvferry)
install(TARGETS kvferry_archive EXPORT kvferry_targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(EXPORT kvferry_targets NAMESPACE kvferry:: FILE kvferry-targets.cmake
        DESTINATION ${KVFERRY_PACKAGE_FOLDER} COMPONENT library)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/kvferry DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT library FILES_MATCHING PATTERN *.h)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvferry-config.cmake.in
  ${CMAKE_BINARY_DIR}/package/kvferry-config.cmake INSTALL_DESTINATION ${KVFERRY_PACKAGE_FOLDER})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/kvferry-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
# Relative, so that the folder may be moved, or installed with another --prefix.
file(RELATIVE_PATH KVFERRY_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/kvferry.pc.in ${CMAKE_BINARY_DIR}/package/kvferry.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/kvferry-config.cmake
              ${CMAKE_BINARY_DIR}/package/kvferry-config-version.cmake
        DESTINATION ${KVFERRY_PACKAGE_FOLDER} COMPONENT library)
install(FILES ${CMAKE_BINARY_DIR}/package/kvferry.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT library)
