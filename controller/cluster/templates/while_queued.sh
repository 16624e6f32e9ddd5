# The controller may listen late, begin again, and on another node: it is looked up before each attempt.
: "${CONTROLLER_JOB:?is set by submit.sh}"
queued() {  # state and node of the controller's job; nothing once it has left the queue
    local jobs
    until jobs=$(squeue --noheader --user="$UID" --format='%A %T %B'); do sleep @@{look_s}; done
    awk -v job="$CONTROLLER_JOB" '$1 == job { print $2, $3 }' <<<"$jobs"
}
looks=0  # since a worker has left well: told to leave, or with the run, unless its controller is queued again
while read -r state node < <(queued); do
    if [ "$state" != RUNNING ]; then
        looks=0
    elif [ "$looks" -gt 0 ]; then
        looks=$((looks + 1))
        [ "$looks" -le @@{looks} ] || exit 0
    elif attach "$node"; then
        looks=1
    else
        code=$?
        [ "$code" -eq @@{no_answer} ] || exit "$code"
    fi
    sleep @@{look_s}
done
echo "The controller's job $CONTROLLER_JOB has left the queue."
