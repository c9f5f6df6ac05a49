"""What real launchers wrote to their streams after a failure, word for word."""

from __future__ import annotations

EDGE = "-" * 74
ABORTED = f"""\
{EDGE}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{EDGE}
"""
OPENMPI4_KILLED = f"""\
{ABORTED}{EDGE}
mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).
{EDGE}
"""
OPENMPI4_LEFT = f"""\
{ABORTED}{EDGE}
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[19479,1],1]
  Exit code:    3
{EDGE}
"""
OPENMPI4_ABORT = f"""\
{EDGE}
MPI_ABORT was invoked on rank 2 in communicator MPI COMMUNICATOR 3 DUP FROM 0
with errorcode 5.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{EDGE}
"""
OPENMPI4_LOST = f"""\
{EDGE}
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[19479,0],0] on node head
  Remote daemon: [[19479,0],1] on node worker1

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
{EDGE}
"""
OPENMPI5_KILLED = f"""\
{EDGE}
prterun noticed that process rank 1 with PID 24000 on node vm exited on
signal 9 (Killed).
{EDGE}
"""
OPENMPI5_LEFT = f"""\
{EDGE}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-24095@1,1]
   Exit code:    3
{EDGE}
"""
OPENMPI5_ABORT = f"""\
{EDGE}
MPI_ABORT was invoked on rank 1 in communicator MPI COMM 3 DUP FROM 0
  Proc: [[47648,1],1]
  Errorcode: 5

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{EDGE}
{EDGE}
prterun has exited due to process rank 1 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
{EDGE}
"""
MPICH_KILLED = f"""\
{"=" * 83}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 22031 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{"=" * 83}
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
MPICH_LEFT = MPICH_KILLED.partition("YOUR APPLICATION TERMINATED")[0]
# The part that matters; no Intel MPI was at hand.
INTEL_KILLED = f"""\
{"=" * 83}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 1 PID 22031 RUNNING AT vm
=   KILLED BY SIGNAL: 9 (Killed)
{"=" * 83}
"""
MPICH_ABORT = "Abort(5) on node 1 (rank 1 in comm 496): application called MPI_Abort(comm=0x84000001, 5) - process 1\n"
OPENMPI4_LINES = """\
[vm:20298] [[9140,0],0] ORTE_ERROR_LOG: Out of resource in file ../../../orte/util/show_help.c at line 501
[vm:12345] 1 more process has sent help message help-mpi-api.txt / mpi-abort
[vm:12345] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages
mpirun: Forwarding signal 10 to job
"""
ALL = {name: text for name, text in vars().items() if name.isupper() and name not in ("EDGE", "ABORTED")}
