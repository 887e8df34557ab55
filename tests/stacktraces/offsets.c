#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
#include <internal/pycore_code.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe_structs.h>
#endif
#else
#include <frameobject.h>
#include <code.h>
#endif
#include <internal/pycore_runtime.h>
#include <internal/pycore_interp.h>
#define P(name, t, m) printf(#name "=%zu ", offsetof(t, m))
int main(void) {
  printf("%d.%d: ", PY_MAJOR_VERSION, PY_MINOR_VERSION);
  P(interpreters, _PyRuntimeState, interpreters.head);
  P(interp_next, PyInterpreterState, next);
#if PY_VERSION_HEX >= 0x030b0000
  P(threads, PyInterpreterState, threads.head);
  P(tid, PyThreadState, native_thread_id);
#else
  P(threads, PyInterpreterState, tstate_head);
  P(tid, PyThreadState, thread_id);
#endif
  P(thread_next, PyThreadState, next);
#if PY_VERSION_HEX < 0x030b0000
  P(frame, PyThreadState, frame);
  P(previous, PyFrameObject, f_back); P(code, PyFrameObject, f_code); P(instr, PyFrameObject, f_lasti);
#elif PY_VERSION_HEX < 0x030d0000
  P(frame, PyThreadState, cframe); P(cframe, _PyCFrame, current_frame);
  P(previous, _PyInterpreterFrame, previous); P(code, _PyInterpreterFrame, f_code); P(instr, _PyInterpreterFrame, prev_instr); P(owner, _PyInterpreterFrame, owner);
#else
  P(frame, PyThreadState, current_frame);
  P(previous, _PyInterpreterFrame, previous); P(code, _PyInterpreterFrame, f_executable); P(instr, _PyInterpreterFrame, instr_ptr); P(owner, _PyInterpreterFrame, owner);
#endif
  P(co_filename, PyCodeObject, co_filename); P(co_firstlineno, PyCodeObject, co_firstlineno);
#if PY_VERSION_HEX >= 0x030b0000
  P(co_name, PyCodeObject, co_qualname); P(co_linetable, PyCodeObject, co_linetable); P(co_code, PyCodeObject, co_code_adaptive);
#elif PY_VERSION_HEX >= 0x030a0000
  P(co_name, PyCodeObject, co_name); P(co_linetable, PyCodeObject, co_linetable);
#else
  P(co_name, PyCodeObject, co_name); P(co_linetable, PyCodeObject, co_lnotab);
#endif
#if PY_VERSION_HEX < 0x030c0000
  P(gil, _PyRuntimeState, gilstate.tstate_current);
#else
  P(gil, PyInterpreterState, ceval.gil); P(holder, struct _gil_runtime_state, last_holder); P(locked, struct _gil_runtime_state, locked);
#endif
  P(state, PyASCIIObject, state); P(length, PyASCIIObject, length); 
  printf("ascii=%zu compact=%zu bytes=%zu bsize=%zu frame_size=", sizeof(PyASCIIObject), sizeof(PyCompactUnicodeObject), offsetof(PyBytesObject, ob_sval), offsetof(PyVarObject, ob_size));
#if PY_VERSION_HEX >= 0x030b0000
  printf("%zu", sizeof(_PyInterpreterFrame));
#endif
  PyASCIIObject a; memset(&a, 0, sizeof a); a.state.ascii = 1; printf(" ascii_bit=%#x", *(unsigned*)&a.state); memset(&a, 0, sizeof a); a.state.kind = 7; printf(" kind_bits=%#x", *(unsigned*)&a.state); memset(&a, 0, sizeof a); a.state.compact = 1; printf(" compact_bit=%#x", *(unsigned*)&a.state);
  printf("\n"); return 0; }
