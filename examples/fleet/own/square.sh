# A shell script as a job of a fleet: it ends between two pieces of work when it is told to, and goes on from there.
folder=${TRAINYARD_JOB_DIR:-.}
trap 'told_to_end=yes' TERM
n=$(cat "$folder/done" 2>/dev/null || echo 0)
while [ "$n" -lt 40 ]; do
    [ -z "$told_to_end" ] || exit 143
    n=$((n + 1))
    sleep 0.1 || true # the work
    echo "$n squared is $((n * n))" >> "$folder/squares.txt"
    echo "$n" > "$folder/done.part" && mv "$folder/done.part" "$folder/done" # whole, whenever this is killed
    echo "{\"step\": $n}" >> "$folder/progress.jsonl"
done
