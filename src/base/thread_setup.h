// What every thread of the library does first: it takes a name, and leaves signals to the program's
// own threads, whose handlers must not run here.
#pragma once

namespace kvferry {

// name: at most 15 characters.
void set_up_thread(const char* name);

}  // namespace kvferry
