# Builds for 64-bit Arm on another machine: Debian's cross compiler, the libraries that scripts/aarch64-root has put into
# build/aarch64-root, and qemu-user to run the tests. Every instruction that Arm has ever added: -cpu max.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-root" ABSOLUTE)
set(libraries "${root}/usr/lib/aarch64-linux-gnu")
set(ENV{PKG_CONFIG_LIBDIR} "${libraries}/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${root}")
set(CMAKE_C_FLAGS_INIT "-isystem ${root}/usr/include -isystem ${root}/usr/include/aarch64-linux-gnu")
set(system_libraries "${root}/lib/aarch64-linux-gnu")
set(CMAKE_EXE_LINKER_FLAGS_INIT
  "-L${libraries} -Wl,--disable-new-dtags,-rpath-link,${libraries}:${system_libraries} -Wl,-rpath,${libraries}:${system_libraries}")
set(CMAKE_FIND_ROOT_PATH "${root};/usr/aarch64-linux-gnu")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-cpu;max;-L;/usr/aarch64-linux-gnu")
