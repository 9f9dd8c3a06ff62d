# Completion of tabane for bash, as 'tabane completions bash' prints it. It needs nothing but bash 4.
_tabane() {
  local line=${COMP_LINE:0:COMP_POINT} current breaks
  local -a words
  local -i at=1
  # Words are cut at blanks here, for bash itself also cuts them at colons and equals signs.
  current=${line##*[[:space:]]}
  read -ra words <<<"${line%"$current"}"
  mapfile -t COMPREPLY < <(tabane complete-words "${words[@]:1}" "$current" 2>/dev/null)
  COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
  # The command stands behind --cluster.
  while [[ ${words[at]-} == --cluster?(=*) ]]; do
    [[ ${words[at]} == --cluster ]] && at+=1
    at+=1
  done
  if [[ ${words[at]-} == run && ${#COMPREPLY[@]} == 0 ]]; then
    mapfile -t COMPREPLY < <(compgen -c -f -- "$current")
  fi
  [[ $current == -* ]] || compopt -o filenames 2>/dev/null
  [[ ${#COMPREPLY[@]} != 1 || ${COMPREPLY[0]} != */ ]] || compopt -o nospace 2>/dev/null
  # Bash replaces only what is behind the last of these.
  breaks=${COMP_WORDBREAKS//[^:=]/}
  [[ -z $breaks ]] || COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*[$breaks]}"}"}")
}
complete -F _tabane tabane
