// Which sanitizer this is built with, and what it is told (internal to the emulation).
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define FORESHARD_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FORESHARD_ADDRESS_SANITIZER 1
#endif
#endif
#if !defined(FORESHARD_ADDRESS_SANITIZER)
#define FORESHARD_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__)
#define FORESHARD_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FORESHARD_THREAD_SANITIZER 1
#endif
#endif
#if !defined(FORESHARD_THREAD_SANITIZER)
#define FORESHARD_THREAD_SANITIZER 0
#endif

#if FORESHARD_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if FORESHARD_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif
