// The allocator of a program (not of the library, which leaves that to its host).
#pragma once

namespace kvferry::cli {

// Asks for memory in 2 MiB pages where the system grants them (transparent huge pages, on or by
// madvise): the tables of very many rooms are visited at random, and each visit to a small page
// costs a walk of the page table besides. MIMALLOC_LARGE_OS_PAGES=0 in the environment overrules
// it. Call once, first in main(). Without effect in sanitized builds.
void set_up_allocator();

}  // namespace kvferry::cli
