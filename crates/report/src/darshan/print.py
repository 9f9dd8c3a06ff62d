# Prints a Darshan log as darshan-parser does, by PyDarshan: what tabane-report reads of it.
import sys

try:
    import darshan.backend.cffi_backend as backend
except ImportError:
    sys.exit(86)

log = backend.log_open(sys.argv[1])
if log["handle"] == backend.ffi.NULL:
    sys.exit(1)
job = backend.log_get_job(log)
print("# jobid:", job["jobid"])
print("# start_time:", job["start_time_sec"])
print("# end_time:", job["end_time_sec"])
print("# nprocs:", job["nprocs"])
for module in backend.log_get_modules(log):
    if module not in ("POSIX", "MPI-IO", "STDIO"):
        continue
    names = backend.counter_names(module), backend.fcounter_names(module)
    while (record := backend.log_get_generic_record(log, module)) is not None:
        for counters, values in zip(names, (record["counters"], record["fcounters"])):
            for counter, value in zip(counters, values):
                print(module, record["rank"], record["id"], counter, value, sep="\t")
