/* Prints fields of the row of a Python's version in stacktraces/layouts.csv, from its headers:
   cc -w -I$(python3.N -c 'import sysconfig as s; print(s.get_path("include"))') offsets.c && ./a.out
   With -DPy_GIL_DISABLED those of its free-threaded build. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe_structs.h>
#endif
#else
#include <frameobject.h>
#endif
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#define SIZE(field, size) printf(#field "=%zu\n", (size_t) (size))
#define PUT(field, type, member) SIZE(field, offsetof(type, member))

int main(void)
{
	SIZE(minor, PY_MINOR_VERSION);
#if PY_VERSION_HEX < 0x030d0000
	PUT(interpreters, _PyRuntimeState, interpreters.head);
	PUT(next_interpreter, PyInterpreterState, next);
#if PY_VERSION_HEX >= 0x030b0000
	PUT(threads, PyInterpreterState, threads.head);
#else
	PUT(threads, PyInterpreterState, tstate_head);
#endif
#endif
#if PY_VERSION_HEX >= 0x030b0000
	PUT(tid, PyThreadState, native_thread_id);
#else
	PUT(tid, PyThreadState, thread_id);
#endif
#if PY_VERSION_HEX >= 0x030d0000
	PUT(call, PyThreadState, current_frame);
	PUT(previous, _PyInterpreterFrame, previous);
	PUT(code, _PyInterpreterFrame, f_executable);
	PUT(instruction, _PyInterpreterFrame, instr_ptr);
	PUT(owner, _PyInterpreterFrame, owner);
#elif PY_VERSION_HEX >= 0x030b0000
	PUT(call, PyThreadState, cframe);
	PUT(via, _PyCFrame, current_frame);
	PUT(previous, _PyInterpreterFrame, previous);
	PUT(code, _PyInterpreterFrame, f_code);
	PUT(instruction, _PyInterpreterFrame, prev_instr);
	PUT(owner, _PyInterpreterFrame, owner);
#else
	PUT(call, PyThreadState, frame);
	PUT(previous, PyFrameObject, f_back);
	PUT(code, PyFrameObject, f_code);
	PUT(instruction, PyFrameObject, f_lasti);
#endif
	PUT(filename, PyCodeObject, co_filename);
#if PY_VERSION_HEX >= 0x030b0000
	PUT(name, PyCodeObject, co_qualname);
#else
	PUT(name, PyCodeObject, co_name);
#endif
	PUT(first_line, PyCodeObject, co_firstlineno);
	PUT(lines, PyCodeObject, co_linetable);
#if PY_VERSION_HEX >= 0x030b0000
	PUT(instructions, PyCodeObject, co_code_adaptive);
#endif
	SIZE(header, sizeof(PyObject));
	SIZE(ascii, sizeof(PyASCIIObject));
	SIZE(unicode, sizeof(PyCompactUnicodeObject));
#if PY_VERSION_HEX >= 0x030c0000
	PUT(lock, PyThreadState, _status);
#else
	PUT(lock, _PyRuntimeState, gilstate.tstate_current);
#endif
#if PY_VERSION_HEX >= 0x030e0000 && defined(Py_GIL_DISABLED)
	PUT(copies, PyCodeObject, co_tlbc);
	PUT(copy, _PyInterpreterFrame, tlbc_index);
#endif
	return 0;
}
