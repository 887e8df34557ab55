/* Prints the row of a Python's version in stacktraces/layouts.py, from its headers:
   cc -w -I$(python3.N -c 'import sysconfig as s; print(s.get_path("include"))') offsets.c && ./a.out
   With -DPy_GIL_DISABLED that of its free-threaded build. */
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

#define PUT(type, member) printf("%zu, ", offsetof(type, member))
#define NONE() printf("None, ")

int main(void)
{
	printf("%d: Layout(", PY_MINOR_VERSION);
#if PY_VERSION_HEX >= 0x030d0000
	printf("0, 0, 0, ");
#else
	PUT(_PyRuntimeState, interpreters.head);
	PUT(PyInterpreterState, next);
#if PY_VERSION_HEX >= 0x030b0000
	PUT(PyInterpreterState, threads.head);
#else
	PUT(PyInterpreterState, tstate_head);
#endif
#endif
#if PY_VERSION_HEX >= 0x030b0000
	PUT(PyThreadState, native_thread_id);
#else
	PUT(PyThreadState, thread_id);
#endif
#if PY_VERSION_HEX >= 0x030d0000
	PUT(PyThreadState, current_frame);
	PUT(_PyInterpreterFrame, previous);
	PUT(_PyInterpreterFrame, f_executable);
	PUT(_PyInterpreterFrame, instr_ptr);
	PUT(_PyInterpreterFrame, owner);
#elif PY_VERSION_HEX >= 0x030b0000
	PUT(PyThreadState, cframe);
	PUT(_PyInterpreterFrame, previous);
	PUT(_PyInterpreterFrame, f_code);
	PUT(_PyInterpreterFrame, prev_instr);
	PUT(_PyInterpreterFrame, owner);
#else
	PUT(PyThreadState, frame);
	PUT(PyFrameObject, f_back);
	PUT(PyFrameObject, f_code);
	PUT(PyFrameObject, f_lasti), NONE();
#endif
	PUT(PyCodeObject, co_filename);
#if PY_VERSION_HEX >= 0x030b0000
	PUT(PyCodeObject, co_qualname);
#else
	PUT(PyCodeObject, co_name);
#endif
	PUT(PyCodeObject, co_firstlineno);
#if PY_VERSION_HEX >= 0x030b0000
	PUT(PyCodeObject, co_linetable);
	PUT(PyCodeObject, co_code_adaptive);
#elif PY_VERSION_HEX >= 0x030a0000
	PUT(PyCodeObject, co_linetable), NONE();
#else
	PUT(PyCodeObject, co_lnotab), NONE();
#endif
	printf("%zu, %zu, %zu, ", sizeof(PyObject), sizeof(PyASCIIObject), sizeof(PyCompactUnicodeObject));
#if PY_VERSION_HEX >= 0x030c0000
	PUT(PyThreadState, _status);
#else
	PUT(_PyRuntimeState, gilstate.tstate_current);
#endif
#if PY_VERSION_HEX >= 0x030e0000 && defined(Py_GIL_DISABLED)
	PUT(PyCodeObject, co_tlbc);
	PUT(_PyInterpreterFrame, tlbc_index);
#elif PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
	printf("via=%zu, ", offsetof(_PyCFrame, current_frame));
#endif
	puts("),");
	return 0;
}
